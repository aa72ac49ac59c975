"""Residual energies on a space that can be enumerated: Z, both bounds, and samples."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

import lmlab
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.score import summarise
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.residual_energy import PartitionEstimate, ResidualEnergyModel
from lmlab.objectives.residual_nce import ResidualNCE
from lmlab.scoring.formatting import describe_summary
from lmlab.training.system_building import build_system, build_tiny

VOCABULARY = Vocabulary(size=7)
START, END, INNER = 2, 3, (1, 5, 6)
LONGEST = 3
SETTINGS = {"width": 8, "layers": 1, "heads": 2, "length": 8, "dropout": 0.0}


def space() -> list[list[int]]:
    """All texts of at most three tokens after <s>: those with an end, and those that are cut."""
    complete = [
        [*body, END] for size in range(LONGEST) for body in itertools.product(INNER, repeat=size)
    ]
    return complete + [list(body) for body in itertools.product(INNER, repeat=LONGEST)]


def batch_of(texts: list[list[int]]) -> Batch:
    return Batch.collate([[START, *text] for text in texts], pad=VOCABULARY.pad)


def make(**settings) -> ResidualEnergyModel:
    """Over an untrained LSTM, with energies that differ by about one nat from text to text."""
    base = build_tiny("lstm", VOCABULARY, seed=3)
    settings = SETTINGS | {"energy": "linear"} | settings
    system = build_system("residual-ebm", settings, VOCABULARY, seed=4, base=base).eval()
    assert isinstance(system, ResidualEnergyModel)
    system.base.max_length.fill_(LONGEST)
    with torch.no_grad():
        system.emission.score.weight.normal_(generator=torch.Generator().manual_seed(0))
        system.emission.score.weight /= system.residual(batch_of(space())).std()
    return system


class Exact:
    """Everything of the space, by enumeration."""

    def __init__(self, system: ResidualEnergyModel) -> None:
        with torch.no_grad():
            batch = batch_of(space())
            self.base = system.base.system.log_prob(batch).totals.double()
            self.residual = system.residual(batch).double()
        joint = self.base - self.residual
        self.log_z = torch.logsumexp(joint, 0).item()
        self.log_p = joint - self.log_z


def total_variation(observed: Tensor, expected: Tensor) -> float:
    return 0.5 * (observed - expected).abs().sum().item()


def frequencies(samples: list[list[int]]) -> Tensor:
    positions = {tuple(text): position for position, text in enumerate(space())}
    result = [positions[tuple(text)] for text in samples]
    return torch.bincount(torch.tensor(result), minlength=len(positions)).double() / len(result)


def sampling_noise(distribution: Tensor, draws: int) -> float:
    """Upper bound of the mean total variation of samples from the distribution itself.

    By Jensen E|f - p| ≤ √(p (1 - p) / n) in each cell.
    """
    return 0.5 * (distribution * (1 - distribution) / draws).sqrt().sum().item()


def test_base_sums_to_one_over_truncated_texts():
    exact = Exact(make())
    assert exact.base.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    assert exact.log_p.exp().sum().item() == pytest.approx(1.0, abs=1e-9)
    assert exact.residual.std().item() == pytest.approx(1.0, abs=1e-4)


def test_energy_is_base_plus_residual():
    system, exact = make(), Exact(make())
    with torch.no_grad():
        energy = system.energy(batch_of(space())).double()
    torch.testing.assert_close(-energy - exact.log_z, exact.log_p, atol=1e-5, rtol=0)


def test_base_samples_follow_its_probabilities():
    system, exact = make(), Exact(make())
    samples = system.base.sample_texts(4000, generator=torch.Generator().manual_seed(0))
    distribution = exact.base.exp()
    assert total_variation(frequencies(samples), distribution) < 1.5 * sampling_noise(
        distribution, 4000
    )


def test_text_beyond_the_support_is_refused():
    """Texts of at most three tokens sum to one already, so that a fourth has nothing left."""
    system = make(partition_samples=20)
    longer = batch_of([[1, END], [*INNER, END]])
    for method in (system.log_prob, system.energy, system.residual):
        with pytest.raises(UserError, match=r"at most 3 tokens after <s>.* got 4; give"):
            method(longer)
    with pytest.raises(UserError, match=r"at most 8 tokens, including <s> and </s>"):
        system.check_length(9)


def test_partition_estimate_by_hand():
    """Weights 1, 1, 4: T_3 = log 2; leaving one out log 5/2, log 5/2, log 1."""
    result = PartitionEstimate.of(torch.tensor([0.0, 0.0, -math.log(4.0)], dtype=torch.float64))
    assert result.low == pytest.approx(math.log(2), abs=1e-9)
    two = (2 * math.log(2.5) + math.log(1.0)) / 3
    assert result.high == pytest.approx(5 * math.log(2) - 4 * two, abs=1e-9)
    # The weights over their mean are 0.5, 0.5, 2, with a variance of 0.75.
    assert result.error == pytest.approx(math.sqrt(0.75 / 3), abs=1e-9)
    assert result.draws == 3


@pytest.mark.parametrize("draws", [8, 16])
def test_estimates_bracket_log_z_on_average(draws: int):
    """Over 3000 seeds, by at least four standard errors of the average."""
    exact = Exact(make())
    generator, seeds = torch.Generator().manual_seed(0), 3000
    distribution = exact.base.exp().expand(seeds, -1)
    texts = torch.multinomial(distribution, draws, replacement=True, generator=generator)
    result = [PartitionEstimate.of(exact.residual[one]) for one in texts]
    low, high = (np.array([getattr(one, end) for one in result]) for end in ("low", "high"))
    for side, gap in (("low", exact.log_z - low), ("high", high - exact.log_z)):
        error = gap.std() / math.sqrt(seeds)
        assert gap.mean() > 4 * error, (side, gap.mean(), error)
    # The bias of T_n is var(weights) / 2n to first order, and that of the other its opposite.
    weights = (-exact.residual - exact.log_z).exp()
    variance = (exact.base.exp() * (weights - 1) ** 2).sum().item()
    assert (exact.log_z - low).mean() == pytest.approx(variance / (2 * draws), rel=0.5)
    assert (high - exact.log_z).mean() == pytest.approx(variance / (2 * draws), rel=0.5)


def test_log_prob_interval_is_close_to_the_exact_value():
    system, exact = make(partition_samples=3000), Exact(make())
    with torch.no_grad():
        result = system.log_prob(batch_of(space()))
    partition = system.partition()
    assert result.kind == "estimate"
    assert partition.low < partition.high
    margin = torch.full((len(space()),), 2 * partition.error)
    torch.testing.assert_close(result.totals - result.low, margin, atol=1e-5, rtol=0)
    wide = margin + partition.high - partition.low
    torch.testing.assert_close(result.high - result.totals, wide, atol=1e-5, rtol=0)
    off = (result.totals.double() - exact.log_p).abs().max().item()
    assert off < 4 * partition.error + 1e-4
    assert partition.error < 0.05


def test_interval_covers_the_exact_value_with_few_samples():
    """Of 20 fixed seeds of 40 draws at least 18 intervals hold it (95 of 100 are expected).

    The two estimates of the same draws alone have it between them far less often.
    """
    system, exact, texts = make(partition_samples=40), Exact(make()), batch_of(space())
    held = alone = 0
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        partition = system.estimate_partition(40, generator=generator)
        system.partition = lambda kept=partition: kept
        with torch.no_grad():
            result = system.log_prob(texts)
        assert (result.low < result.totals).all() and (result.totals < result.high).all()
        width = (result.high - result.low).double()
        assert (width > 4 * partition.error).all()
        held += bool(((result.low <= exact.log_p) & (exact.log_p <= result.high)).all())
        alone += partition.low <= exact.log_z <= partition.high
    assert held >= 18
    assert alone < 8


def test_log_z_is_cached_until_weights_change():
    system = make(partition_samples=50)
    first = system.partition()
    assert system.partition() is first
    with torch.no_grad():
        system.emission.score.weight.mul_(2.0)
    assert system.partition() != first


def test_log_z_is_reestimated_for_new_samples_or_precision():
    system = make(partition_samples=200)
    assert system.partition().draws == 200
    system.partition_samples = 1000
    assert system.partition().draws == 1000
    single = system.partition()
    doubled = system.double().partition()
    assert doubled is not single and doubled.low == pytest.approx(single.low, abs=1e-2)
    # A fused optimiser leaves versions as they were; `data` does so as well.
    for parameter in system.train().parameters():
        parameter.data.mul_(1.5)
    assert system.eval().partition() != doubled


def test_samples_converge_as_candidates_increase():
    """One candidate is the base itself; with 32 only sampling noise is left."""
    exact, rows, result = Exact(make()), 2000, {}
    distribution, base = exact.log_p.exp(), exact.base.exp()
    for candidates in (1, 4, 32):
        system = make(candidates=candidates)
        generator = torch.Generator().manual_seed(candidates)
        samples = system.sample(rows, max_length=LONGEST, generator=generator)
        result[candidates] = total_variation(frequencies(samples), distribution)
    noise = sampling_noise(distribution, rows)
    assert total_variation(base, distribution) > 4 * noise, "there must be something to correct"
    assert result[1] == pytest.approx(total_variation(base, distribution), abs=2 * noise)
    assert result[1] > result[4] > result[32]
    assert result[32] < 1.5 * noise


def test_sampled_texts_are_truncated_afterwards():
    system = make(candidates=2)
    samples = system.sample(50, max_length=1, generator=torch.Generator().manual_seed(0))
    assert {len(text) for text in samples} == {1}


def test_untrained_model_equals_its_base():
    system = build_tiny("residual-ebm", VOCABULARY)
    with torch.no_grad():
        batch = batch_of(space())
        result = system.log_prob(batch)
        torch.testing.assert_close(result.totals, system.base.system.log_prob(batch).totals)
    assert torch.equal(result.low, result.high)


def test_nce_loss_by_hand():
    """With all energies c = 1: log(1 + e) for a text, log(1 + 1/e) for each sample."""
    system = make()
    with torch.no_grad():
        system.emission.score.weight.zero_()
        system.constant.fill_(1.0)
    loss, _ = system.loss(batch_of(space()[:5]), generator=torch.Generator().manual_seed(0))
    expected = 5 * (math.log(1 + math.e) + math.log(1 + 1 / math.e))
    assert loss.count.item() == 10
    assert loss.total.item() == pytest.approx(expected, abs=1e-4)


def test_base_stays_frozen_in_training():
    system = make().train()
    assert not any(part.training for part in system.base.modules() if part is not system.base)
    before = [parameter.clone() for parameter in system.base.parameters()]
    optimizer = torch.optim.SGD([p for p in system.parameters() if p.requires_grad], lr=1.0)
    loss, _ = system.loss(batch_of(space()), generator=torch.Generator().manual_seed(0))
    loss.total.backward()
    optimizer.step()
    for parameter, was in zip(system.base.parameters(), before, strict=True):
        assert parameter.grad is None and torch.equal(parameter, was)


def test_base_without_step_is_refused():
    base = build_tiny("bert", VOCABULARY)
    with pytest.raises(UserError, match=r"needs a system with Step, which this one lacks"):
        build_system("residual-ebm", SETTINGS, VOCABULARY, seed=0, base=base)


def test_conditional_base_is_refused():
    base = build_tiny("seq2seq", VOCABULARY)
    with pytest.raises(UserError, match="an unconditional language model"):
        build_system("residual-ebm", SETTINGS, VOCABULARY, seed=0, base=base)


def test_contiguous_text_base_is_refused():
    vocabulary = Vocabulary(size=7, first=END)
    base = build_tiny("lstm", vocabulary)
    with pytest.raises(UserError, match="one text per line"):
        build_system("residual-ebm", SETTINGS, vocabulary, seed=0, base=base)


def test_residual_improves_on_a_unigram_base(tmp_path):
    """Letters repeat nine times in ten, the base is a unigram: a gain of 0.1 nats per token.

    The test texts' score is the careful one, and the gain is far above the error of log Z.
    """
    corpus = tmp_path / "ab"
    corpus.mkdir()
    for split, seed, count in (("train", 0, 600), ("test", 1, 200)):
        (corpus / f"{split}.txt").write_text("\n".join(letters(count, seed)) + "\n")
    base = lmlab.train(
        "ngram", data=str(corpus), out=tmp_path / "base", settings={"order": 1}, quiet=True
    )
    settings = {"learning_rate": 0.01, "schedule": "constant", "tokens_per_batch": 512}
    result = lmlab.train(
        "residual-ebm",
        data=str(corpus),
        out=tmp_path / "residual",
        size="tiny",
        base=base.path,
        settings=settings | {"partition_samples": 2000, "weight_decay": 0},
        steps=60,
        quiet=True,
    )
    texts = letters(200, 1)
    plain, better = (lmlab.load(path).score(texts) for path in (base.path, result.path))
    tokens = sum(score.tokens for score in plain)
    gain = sum(b.total - a.total for a, b in zip(plain, better, strict=True)) / tokens
    assert gain > 0.1
    assert {score.kind for score in better} == {"estimate"}
    best, worst = summarise(better).perplexity_interval
    assert best < summarise(better).perplexity < worst
    assert worst < summarise(plain).perplexity
    assert summarise(plain).perplexity_interval is None
    assert f"(between {best:.4f} and {worst:.4f})" in describe_summary(summarise(better))


def test_batches_mix_lengths_as_the_base_does(tmp_path, monkeypatch):
    """Each batch has texts of all lengths, as the base's have, so that none looks like the data's.

    Of 200 texts of 1 and 200 of 11 letters, batches of a dozen alike would be of one kind alone.
    """
    corpus, seen = tmp_path / "ab", []
    corpus.mkdir()
    (corpus / "train.txt").write_text("\n".join(["a", " ".join("abababababa")] * 200) + "\n")
    view = ResidualNCE.view

    def watched(self, batch, **words):
        seen.append(set(batch.lengths.tolist()))
        return view(self, batch, **words)

    monkeypatch.setattr(ResidualNCE, "view", watched)
    words = {"data": str(corpus), "quiet": True}
    base = lmlab.train("ngram", out=tmp_path / "base", settings={"order": 2}, **words)
    settings = {"tokens_per_batch": 12 * 13}
    lmlab.train(
        "residual-ebm",
        out=tmp_path / "run",
        size="tiny",
        base=base.path,
        steps=8,
        settings=settings,
        **words,
    )
    assert len(seen) >= 8
    assert all(lengths == {3, 13} for lengths in seen)


def test_held_out_texts_longer_than_training_are_refused(tmp_path):
    """Their contrast is watched as any other's; scored by themselves they are refused."""
    corpus = tmp_path / "ab"
    corpus.mkdir()
    (corpus / "train.txt").write_text("a b\na b a b\n" * 20)
    (corpus / "validation.txt").write_text("a b\na b a b a b a b\n" * 5)
    words = {"data": str(corpus), "quiet": True}
    base = lmlab.train("ngram", out=tmp_path / "base", settings={"order": 1}, **words)
    result = lmlab.train(
        "residual-ebm", out=tmp_path / "run", size="tiny", base=base.path, steps=3, **words
    )
    assert result.loss is not None and math.isfinite(result.loss)
    model = lmlab.load(result.path)
    (score,) = model.score(["a b a b"])
    assert score.tokens == 5 and math.isfinite(score.total)
    message = "at most 5 tokens after <s>, the longest in training, got"
    with pytest.raises(UserError, match=f"{message} 6"):
        model.score(["a b a b a"])
    with pytest.raises(UserError, match=f"{message} 31"):
        model.chains(1, method="metropolis", proposal="unigram", length=30, steps=5)


def letters(count: int, seed: int) -> list[str]:
    generator, lines = np.random.default_rng(seed), []
    for _ in range(count):
        words = [str(generator.choice(["a", "b"]))]
        while generator.random() > 0.25 and len(words) < 12:
            same = generator.random() < 0.9
            words.append(words[-1] if same else {"a": "b", "b": "a"}[words[-1]])
        lines.append(" ".join(words))
    return lines
