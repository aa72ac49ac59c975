"""Noise-contrastive estimation and importance sampling against enumeration."""

from __future__ import annotations

import contextlib
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lmlab.cli.main import main
from lmlab.core.assembly import Assembly
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import catalogue, system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.diagnosis.examination import examine_run
from lmlab.diagnosis.examination_figures import loss_figure
from lmlab.objectives.sampled_losses import (
    ImportanceSampledSoftmax,
    NoiseContrastiveEstimation,
    NoiseDistribution,
    SampledSoftmax,
    log_normalisers,
)
from lmlab.plotting.figure import render_figure
from lmlab.training.run_folder import load_run
from lmlab.training.system_building import build_system
from lmlab.training.train import train

VOCABULARY = Vocabulary(size=12)
PREDICTABLE = [i for i in range(12) if i not in VOCABULARY.unpredictable]
TOKENS = np.array([2, 5, 6, 3, 2, 5, 5, 7, 3, 2, 8, 3])
"""Ids of three texts: 5 three times, 6, 7 and 8 once, the end three times; 1, 9, 10, 11 never."""
SAMPLED = [name for name, card in catalogue().items() if "nce" in card.objectives]


def make_noise(power: float, tokens: np.ndarray = TOKENS) -> NoiseDistribution:
    noise = NoiseDistribution(VOCABULARY, power=power)
    noise.count(tokens)
    return noise


def nce(samples: int, *, power: float = 1.0, learned_z: bool = False) -> NoiseContrastiveEstimation:
    return NoiseContrastiveEstimation(make_noise(power), samples=samples, learned_z=learned_z)


@pytest.mark.parametrize("power", [0.0, 0.75, 1.0])
def test_noise_distribution_is_a_power_of_the_counts(power):
    """Counts, at least one: 5 and </s> three times, 1, 6, 7, 8, 9, 10 and 11 once; no other."""
    weights = {5: 3**power, 3: 3**power} | dict.fromkeys((1, 6, 7, 8, 9, 10, 11), 1.0)
    expected = torch.zeros(12)
    for token, weight in weights.items():
        expected[token] = weight / sum(weights.values())
    noise = make_noise(power)
    torch.testing.assert_close(noise.log_probs().exp(), expected, atol=1e-6, rtol=0)
    samples = noise.sample((200, 500), generator=torch.Generator().manual_seed(0))
    frequencies = torch.bincount(samples.flatten(), minlength=12) / samples.numel()
    # Standard errors of 100,000 draws are at most 0.0016.
    torch.testing.assert_close(frequencies, expected, atol=6e-3, rtol=0)
    assert frequencies[list(VOCABULARY.unpredictable)].sum() == 0


def test_uniform_noise_is_uniform_by_a_chi_squared_test():
    """197 words weigh 197 * 2^20 < 2^28: 32 bits modulo that favour the first ids by 5 %."""
    noise = NoiseDistribution(Vocabulary(size=200), power=0.0)
    words = [i for i in range(200) if i not in noise.vocabulary.unpredictable]
    samples = noise.sample((400_000,), generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(samples, minlength=200)[words].double()
    assert counts.sum() == 400_000
    statistic = ((counts - counts.mean()).square() / counts.mean()).sum()
    freedom = torch.tensor(len(words) - 1.0, dtype=torch.float64)
    assert torch.special.gammaincc(freedom / 2, statistic / 2) > 1e-6


def test_sampled_losses_by_hand():
    """k = 2, q = 1/4 each, so log(k q) = -log 2; scores log 2 (target), 0 and log 3 (noise)."""
    scores = torch.tensor([[math.log(2), 0.0, math.log(3)]])
    log_noise = torch.full((1, 3), math.log(1 / 4))
    # σ(log 2 + log 2) = 4/5;  1 - σ(log 2) = 1/3;  1 - σ(log 3 + log 2) = 1/7.
    expected = -math.log(4 / 5) - math.log(1 / 3) - math.log(1 / 7)
    assert nce(2).target_losses(scores, log_noise).item() == pytest.approx(expected, abs=1e-6)
    # With Z = 2 the odds halve: σ(log 2) = 2/3;  1 - σ(0) = 1/2;  1 - σ(log 3) = 1/4.
    learned = nce(2, learned_z=True)
    with torch.no_grad():
        learned.log_z.fill_(math.log(2))
    expected = -math.log(2 / 3) - math.log(1 / 2) - math.log(1 / 4)
    assert learned.target_losses(scores, log_noise).item() == pytest.approx(expected, abs=1e-6)
    # Importance: -log 2 + log((1·4 + 3·4) / 2); sampled softmax: -log(8 / (8 + 4 + 12)).
    words = {"samples": 2, "shared": False}
    importance = ImportanceSampledSoftmax(make_noise(0.0), **words).target_losses(scores, log_noise)
    assert importance.item() == pytest.approx(-math.log(2) + math.log(8), abs=1e-6)
    sampled = SampledSoftmax(make_noise(0.0), **words).target_losses(scores, log_noise)
    assert sampled.item() == pytest.approx(math.log(3), abs=1e-6)


class TinyLM:
    """Normalised p(w | h) of a few contexts over nine tokens; the data distribution differs."""

    def __init__(self, contexts: int = 3) -> None:
        generator = torch.Generator().manual_seed(1)
        self.vectors = torch.randn(contexts, 4, generator=generator, dtype=torch.double)
        self.matrix = torch.randn(4, 9, generator=generator, dtype=torch.double)
        self.matrix.requires_grad_()
        self.data = torch.softmax(
            2 * torch.randn(contexts, 9, generator=generator, dtype=torch.double), 1
        )
        self.log_noise = make_noise(1.0).log_probs()[PREDICTABLE].double()

    def log_probs(self) -> torch.Tensor:
        """(contexts, 9) normalised scores."""
        return F.log_softmax(self.vectors @ self.matrix, 1)

    def gradient(self, loss: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(loss, self.matrix)[0].flatten()

    def likelihood_gradient(self) -> torch.Tensor:
        return self.gradient(-(self.data * self.log_probs()).sum())

    def nce_gradient(self, samples: int) -> torch.Tensor:
        """The NCE loss with the expectation over data and noise taken by enumeration."""
        p, noise = self.log_probs().exp(), samples * self.log_noise.exp()
        log_likelihood = self.data * torch.log(p / (p + noise)) + noise * torch.log(
            noise / (p + noise)
        )
        return self.gradient(-log_likelihood.sum())


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(F.cosine_similarity(a, b, dim=0))


def test_nce_gradient_tends_to_maximum_likelihood():
    tiny = TinyLM()
    exact = tiny.likelihood_gradient()
    cosines = [cosine(tiny.nce_gradient(k), exact) for k in (1, 4, 16, 64, 256, 4096)]
    assert cosines == sorted(cosines)
    assert cosines[0] < 0.99 < 0.9999 < cosines[-1]
    # Term by term the gradient is k q / (k q + p) of maximum likelihood's, so 1 - O(1 / k).
    torch.testing.assert_close(tiny.nce_gradient(10**8), exact, atol=1e-6, rtol=0)


@pytest.mark.parametrize("samples", [1, 4, 16])
def test_sampled_gradient_has_the_enumerated_expectation(samples):
    """Over 40,000 draws of a target and its noise the mean is within five standard errors."""
    tiny, draws = TinyLM(contexts=1), 40_000
    generator = torch.Generator().manual_seed(samples)
    targets = torch.multinomial(tiny.data[0], draws, replacement=True, generator=generator)
    noise = torch.multinomial(
        tiny.log_noise.exp(), draws * samples, replacement=True, generator=generator
    ).view(draws, samples)
    candidates = torch.cat([targets[:, None], noise], 1)
    scores = tiny.log_probs()[0].expand(draws, -1).gather(1, candidates)
    scores.retain_grad()
    nce(samples).target_losses(scores, tiny.log_noise[candidates]).sum().backward()
    assert scores.grad is not None
    # d loss / d log p(w), summed over every sample of a token.
    gradients = torch.zeros(draws, 9, dtype=torch.double).scatter_add_(1, candidates, scores.grad)
    p, q = tiny.log_probs()[0].exp(), samples * tiny.log_noise.exp()
    expected = -(q / (q + p)) * (tiny.data[0] - p)
    errors = gradients.std(0) / draws**0.5
    assert ((gradients.mean(0) - expected).abs() < 5 * errors).all()


def minimise(loss, parameters: list[torch.Tensor], steps: int = 400) -> None:
    optimizer = torch.optim.LBFGS(parameters, max_iter=steps, tolerance_grad=1e-12)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)


@pytest.mark.parametrize(("power", "copies"), [(0.0, 1), (1.0, 3)])
def test_nce_optimum_is_the_self_normalised_data_distribution(power, copies):
    """Free scores of nine tokens: s = log p at the optimum, so Σ exp s = 1 without a constraint.

    Noise that holds each token as often as q says is its expectation: each once under the uniform
    distribution, 5 and </s> three times under the unigram one.
    """
    noise = [token for token in PREDICTABLE for _ in range(copies if token in (3, 5) else 1)]
    objective, data = nce(len(noise), power=power), TinyLM().data
    scores = torch.zeros(3, 9, dtype=torch.double, requires_grad=True)
    # A row for each token as the target, with all of the noise.
    candidates = torch.tensor([[target, *noise] for target in PREDICTABLE])
    log_noise = objective.noise.log_prob(candidates).double()
    columns = torch.tensor(
        [[PREDICTABLE.index(token) for token in row] for row in candidates.tolist()]
    )

    def loss() -> torch.Tensor:
        return sum(
            (distribution * objective.target_losses(row[columns], log_noise)).sum()
            for distribution, row in zip(data, scores, strict=True)
        )

    minimise(loss, [scores])
    torch.testing.assert_close(scores.detach().exp(), data, atol=1e-5, rtol=0)


def test_nce_learns_bigrams_and_normalises_itself():
    """我是人, 你很强, 我爆零了, 我是吊打: after 我 comes 是 twice and 爆 once."""
    texts = ["我是人", "你很强", "我爆零了", "我是吊打"]
    letters = sorted(set("".join(texts)))
    rows = [[2, *(5 + letters.index(letter) for letter in text), 3] for text in texts]
    vocabulary = Vocabulary(size=5 + len(letters))
    # With 500 noise samples five seeds are within 0.01 of 2/3; with 50 they spread over ± 0.04.
    config = {"objective": "nce", "noise_samples": 500, "width": 16, "size": 3, "dropout": 0.0}
    system = build_system("window", config, vocabulary, seed=0)
    assert isinstance(system, Assembly)
    offsets = np.cumsum([0, *map(len, rows)])
    system.setup_data(np.concatenate(rows), offsets)
    batch = Batch.collate(rows, pad=0)
    optimizer = torch.optim.Adam(system.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(0)
    for step in range(600):
        optimizer.param_groups[0]["lr"] = 0.05 * (1 - step / 600)
        loss, _ = system.loss(batch, generator=generator)
        optimizer.zero_grad()
        loss.mean.backward()
        optimizer.step()
    i, am, burst = (5 + letters.index(letter) for letter in "我是爆")
    bigrams = Batch.collate([[2, i, am], [2, i, burst]], pad=0)
    with torch.no_grad():
        after = system.eval().log_prob(bigrams).per_token[:, 1].exp().tolist()
        normalisers = log_normalisers(system, system.objective.view(bigrams)).to_dense()[:, 1]
    assert after == pytest.approx([2 / 3, 1 / 3], abs=0.03)
    # And it normalises by itself there, though no sum over tokens was ever taken: Z is near 1.
    assert normalisers.exp().tolist() == pytest.approx([1.0, 1.0], abs=0.1)


@pytest.mark.parametrize("shared", [False, True])
def test_scores_of_few_tokens_equal_softmax_logits(shared):
    """And log Z, a score less its log-probability, is log Σ exp s by enumeration."""
    config = {"objective": "nce", "noise_samples": 5, "noise_shared": shared, "width": 8}
    system = build_system("lstm", config, VOCABULARY, seed=3).eval()
    assert isinstance(system, Assembly)
    system.setup_data(TOKENS, np.array([0, 4, 9, 12]))
    view = system.objective.view(Batch.collate([[2, 5, 6, 3], [2, 5, 5, 7, 3]], pad=0))
    hidden = system.hidden(view)
    assert view.targets is not None
    positions = view.targets >= 0
    full = system.emission.log_probs(hidden.values[positions])
    emission = system.emission
    logits = emission.logits(hidden.values[positions])
    own = torch.tensor([[5, 7]] * int(positions.sum()))
    common = torch.tensor([3, 9, 9]) if shared else None
    scores = system.scores(hidden, positions, own, common)
    columns = [5, 7, 3, 9, 9] if shared else [5, 7]
    torch.testing.assert_close(scores, logits[:, columns])
    sums = torch.logsumexp(logits[:, PREDICTABLE], 1)
    torch.testing.assert_close(log_normalisers(system, view).log_probs, sums)
    torch.testing.assert_close(full[:, 5], logits[:, 5] - sums)


MIXTURES = ("rnn-mixture", "gru-mixture", "lstm-mixture", "gru-minimal", "mgru")
SOFTMAX = {
    **{name: {"emission": "softmax", "starts": 0} for name in MIXTURES},
    "lstm-sphere": {"emission": "softmax"},
    "spanbert": {"sbo_positions": 0},
}
"""Settings for systems whose default emission is another or that have further losses."""


def build_sampled(name: str, **settings) -> tuple[Assembly, Batch]:
    """A tiny system after `setup_data`, and texts to train it on, with sources if it is
    conditional."""
    card, tiny = catalogue()[name], vars(system_module(name).SIZES["tiny"])
    system = build_system(name, {**tiny, **SOFTMAX.get(name, {}), **settings}, VOCABULARY, seed=0)
    assert isinstance(system, Assembly)
    system.setup_data(TOKENS, np.array([0, 4, 9, 12]))
    rows = [[2, 5, 6, 8, 7, 3], [2, 5, 5, 7, 3]] * 8
    # An image is a source of its own kind, and without one there is an empty one.
    given = card.conditional and "source" not in card.exempt
    condition = Batch.collate([[2, 6, 7, 3]] * 16, pad=0) if given else None
    return system, Batch.collate(rows, pad=0, condition=condition)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", SAMPLED)
def test_nce_loss_equals_its_formula_on_softmax_logits(name, shared):
    """-log σ(Δ_0) - Σ_j log σ(-Δ_j), Δ = s - log(k q), with the noise of the same generator."""
    system, batch = build_sampled(name, objective="nce", noise_samples=5, noise_shared=shared)
    noise, emission = make_noise(1.0), system.emission
    loss, _ = system.loss(batch, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(1)
    view = system.objective.view(batch, generator=generator)
    passes = [(view, system.hidden(view))]
    if "both-ways" in catalogue()[name].objectives:
        backwards = system.objective.backward_view(batch)
        passes.append((backwards, system.objective.backward(backwards)))
    expected, count = 0.0, 0
    for pass_view, hidden in passes:
        positions = pass_view.prediction_view.targets >= 0
        targets = pass_view.prediction_view.targets[positions]
        noise_tokens = noise.sample((5,) if shared else (len(targets), 5), generator=generator)
        with torch.no_grad():
            logits = emission.logits(hidden.values[positions])
        tokens = torch.cat([targets[:, None], noise_tokens.expand(len(targets), 5)], 1)
        odds = logits.gather(1, tokens) - torch.log(5 * noise.log_probs().exp()[tokens])
        signed_odds = torch.cat([odds[:, :1], -odds[:, 1:]], 1)
        expected -= torch.sigmoid(signed_odds.double()).log().sum().item()
        count += len(targets)
    masked_loss = loss.parts.get("masked", loss)
    assert count > 3 and masked_loss.count.item() == count
    assert masked_loss.total.item() == pytest.approx(expected, rel=1e-4)


def test_output_biases_start_as_log_unigram():
    """The output's biases are log-frequencies, with a word that was never seen counted once."""
    system = build_system("lstm", {"objective": "nce", "width": 8}, VOCABULARY, seed=0)
    assert isinstance(system, Assembly)
    system.setup_data(TOKENS, np.array([0, 4, 9, 12]))
    bias = system.emission.bias.detach()
    assert bias[5].item() == pytest.approx(math.log(3 / 13))
    assert bias[9].item() == pytest.approx(math.log(1 / 13))
    assert bias[list(VOCABULARY.unpredictable)].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("objective", ["nce", "importance", "sampled-softmax"])
@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_losses_train_all_weights_and_keep_scores(name, objective):
    """Every weight gets a gradient; of an exact system all next tokens still sum to one."""
    system, batch = build_sampled(name, objective=objective, log_z="learned")
    loss, _ = system.loss(batch, generator=torch.Generator().manual_seed(0))
    loss.total.backward()
    assert not system.loss_is_comparable
    own, _ = build_sampled(name)
    assert own.loss_is_comparable and own.sampled_loss is None
    plain, _ = own.loss(batch, generator=torch.Generator().manual_seed(0))
    plain.total.backward()
    trained = {n for n, p in own.named_parameters() if p.grad is not None and p.grad.any()}
    more = {"sampled_loss.log_z"} if objective == "nce" else set()
    more |= {"emission.bias"} if "emission.bias" in dict(system.named_parameters()) else set()
    with_gradient = {n for n, p in system.named_parameters() if p.grad is not None and p.grad.any()}
    assert with_gradient == trained | more
    all_continuations = Batch.collate([[2, 5, token] for token in PREDICTABLE], pad=0)
    with torch.no_grad():
        scored = system.eval().log_prob(all_continuations)
    assert scored.kind == catalogue()[name].kind
    if scored.kind == "exact":
        assert scored.per_token[:, 1].exp().sum().item() == pytest.approx(1.0, abs=1e-5)


def test_exactly_the_listed_softmax_systems_accept_nce():
    """Of left-to-right and masked systems, those that accept the sampled loss, and no others."""
    contrast, able = nce(1), set()
    for name, card in catalogue().items():
        if card.objectives[0] not in ("next-token", "both-ways", "masked"):
            continue
        if card.needs or card.components:
            continue
        tiny = {**vars(system_module(name).SIZES["tiny"]), **SOFTMAX.get(name, {})}
        system = build_system(name, tiny, VOCABULARY, seed=0)
        if isinstance(system, Assembly):
            with contextlib.suppress(UserError):
                system.set_sampled_loss(contrast)
                able.add(name)
    assert able == set(SAMPLED)
    assert {"gpt", "transformer-xl", "lstm", "window", "seq2seq", "elmo", "bert", "mgru"} < able


def test_held_out_loss_of_a_masked_lm_is_its_softmax_loss():
    """The log-probabilities of masked tokens, while the training loss is NCE with 200 samples."""
    system, batch = build_sampled("roberta", objective="nce", noise_samples=200)
    generators = [torch.Generator().manual_seed(0) for _ in range(3)]
    with torch.no_grad():
        held_out, _ = system.held_out_loss(batch, state=None, generator=generators[0])
        contrast, _ = system.loss(batch, generator=generators[1])
        view = system.objective.view(batch, generator=generators[2])
        expected = -system.target_log_probs(view).log_probs.sum()
    torch.testing.assert_close(held_out.total, expected)
    assert abs(contrast.mean - held_out.mean) > 0.5


def test_nce_refuses_non_softmax_systems_with_advice(tmp_path: Path):
    words = {"data": "capitals", "out": tmp_path / "a", "objective": "nce", "quiet": True}
    with pytest.raises(UserError, match=r"fit: next-token; it trains .*gpt, gru, .*window\.$"):
        train("ngram", **words)
    with pytest.raises(UserError, match=r"fit: masked, .*sampled-softmax\.$"):
        train("bert", **(words | {"objective": "next"}))
    config = {"objective": "nce", "emission": "sphere"}
    with pytest.raises(UserError, match=r"a softmax over one vector .* CosineSoftmax .*=softmax"):
        build_system("lstm", config, VOCABULARY, seed=0)
    for name, setting, advice in (
        ("lstm", {"starts": 2}, "starts=0"),
        ("seq2seq", {"latent_choices": 2}, "latent_choices=1"),
        ("transformer", {"label_smoothing": 0.1}, "label_smoothing=0"),
        ("spanbert", {}, "sbo_positions=0"),
    ):
        with pytest.raises(UserError, match=advice):
            build_system(name, {"objective": "nce", **setting}, VOCABULARY, seed=0)


def test_noise_distribution_is_saved_and_resumed(tmp_path: Path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    lines = ["a b a", "b b", "a a a b", "c"] * 20
    (corpus / "train.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = {"data": str(corpus), "size": "tiny", "objective": "nce", "quiet": True}
    settings = {"noise": "unigram-0.75", "log_z": "learned", "noise_samples": "3"}
    train("gru", out=tmp_path / "whole", steps=8, settings=settings, **words)
    train("gru", out=tmp_path / "halves", steps=4, settings=settings, **words)
    train("gru", out=tmp_path / "halves", steps=8, settings=settings, resume=True, **words)
    whole, halves = (load_run(tmp_path / name).system.state_dict() for name in ("whole", "halves"))
    assert "sampled_loss.noise.cumulative" in whole and "sampled_loss.log_z" in whole
    assert all(torch.equal(whole[name], halves[name]) for name in whole)
    noise = load_run(tmp_path / "whole").system.sampled_loss.noise
    # a occurs 20 · 5 times in the text, b 20 · 4, c 20, the end 80; unseen <unk> counts once.
    counts = {"a": 100, "b": 80, "c": 20}
    tokenizer = load_run(tmp_path / "whole").tokenizer
    total = sum(n**0.75 for n in (100, 80, 20, 80, 1))
    for letter, count in counts.items():
        (token,) = tokenizer.encode(letter)
        expected = math.log(count**0.75 / total)
        assert noise.log_prob(torch.tensor(token)).item() == pytest.approx(expected, abs=1e-5)


def test_diagnosis_does_not_compare_sampled_losses(tmp_path: Path):
    """A sampled loss of 2 nats and a held-out loss of 3 do not indicate overfitting."""
    settings = {"noise_samples": "2", "log_every": "5"}
    words = {"data": "grammar", "size": "tiny", "quiet": True, "steps": 20, "settings": settings}
    train("lstm", out=tmp_path / "run", objective="nce", **words)
    assert not load_run(tmp_path / "run").system.loss_is_comparable
    examination = examine_run(tmp_path / "run")
    assert (
        examination.key_figures["last training loss"]
        < examination.key_figures["last held-out loss"] - 0.5
    )
    assert "overfitting" not in {finding.name for finding in examination.findings}
    assert not examination.losses_comparable
    assert "training, another loss" in render_figure(loss_figure(examination)).svg


@pytest.mark.parametrize("objective", ["nce", "importance", "sampled-softmax"])
def test_training_loss_is_reported_as_a_sampled_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], objective: str
):
    run = tmp_path / "run"
    words = ["--size", "tiny", "--steps", "3", "--data", "grammar", "--objective", objective]
    assert main(["train", "lstm", "--out", str(run), *words]) == 0
    stderr = capsys.readouterr().err
    assert re.search(
        r"training loss [\d.]+ \(another loss\), validation [\d.]+ nats per token", stderr
    )
    assert "lstm (training, another loss)" in (run / "figures" / "curves.svg").read_text()
