"""MCMC sampler: resampled positions, schedules, energies, diagnostics and errors."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from lmlab.core.errors import UserError
from lmlab.core.registry import catalogue, system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.batches import pad_rows
from lmlab.data.corpus import Layout
from lmlab.data.tokenizers import train_tokenizer
from lmlab.sampling.mcmc.energy import (
    LogitEnergy,
    PseudoLikelihoodEnergy,
    SystemEnergy,
    make_energy,
)
from lmlab.sampling.mcmc.mcmc_config import McmcConfig
from lmlab.sampling.mcmc.proposals import (
    allowed_tokens,
    sample_tokens,
    uniform_proposal,
    unigram_proposal,
)
from lmlab.sampling.mcmc.sampler import McmcSampler
from lmlab.sampling.mcmc.schedule import ChainSchedule, RandomScan, SystematicScan

LINES = ["the cat sees a dog", "a dog sees the cat", "the dog sleeps"] * 3
WORDS = train_tokenizer("word", LINES)


def build(name: str, scale: float = 1.0, **settings):
    torch.manual_seed(0)
    module = system_module(name)
    config = replace(module.SIZES["tiny"], **settings)
    system = module.build(config, WORDS.vocabulary).eval()
    with torch.no_grad():
        for parameter in system.parameters():
            if parameter.ndim > 1:
                parameter.mul_(scale)
    return system


@pytest.fixture(scope="module")
def bert():
    return build("bert", scale=2.0)


@pytest.fixture(scope="module")
def hmm():
    return build("hmm")


def run(system, *, lm=None, progress=lambda done, of: None, **options):
    runner = McmcSampler(
        system, WORDS, Layout(), McmcConfig(**options), corpus_texts=lambda: LINES, lm=lm
    )
    return runner.run(progress)


# Resampled positions ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["gibbs", "metropolis"])
@pytest.mark.parametrize("symbol", ["<mask>", "[MASK]"])
def test_only_template_blanks_are_resampled(bert, method, symbol):
    template = f"the {symbol} sees a {symbol}"
    record = run(bert, n=12, method=method, template=template, steps=30, chains=4)
    words = [text.text.split() for text in record.texts]
    assert len(words) == 12
    assert all(
        (sentence[0], sentence[2], sentence[3]) == ("the", "sees", "a") for sentence in words
    )
    assert (
        len({sentence[1] for sentence in words}) > 1
        and len({sentence[4] for sentence in words}) > 1
    )


def test_prefix_is_fixed_and_length_tokens_follow(bert):
    record = run(bert, n=3, prefix="the dog", length=4, steps=12)
    assert all(
        sampled.text.startswith("the dog ") and sampled.tokens == 6 for sampled in record.texts
    )


def test_text_is_resampled_at_all_or_given_positions(bert):
    text = "the cat sees a dog"
    free = run(bert, n=8, text=text, steps=40)
    columns = list(zip(*(sampled.text.split() for sampled in free.texts), strict=True))
    assert all(len(set(column)) > 1 for column in columns)
    some = run(bert, n=8, text=text, positions=(2, 5), steps=40)
    columns = list(zip(*(sampled.text.split() for sampled in some.texts), strict=True))
    assert [len(set(column)) > 1 for column in columns] == [False, True, False, False, True]
    assert (free.start, some.start) == ("text", "text")


def test_lm_initialisation_keeps_sample_lengths(bert, hmm):
    torch.manual_seed(0)
    record = run(bert, n=8, start="lm", lm=(hmm, WORDS), length=6, steps=20, chains=8)
    lengths = {sampled.tokens for sampled in record.texts}
    assert lengths <= set(range(1, 7)) and len(lengths) > 1
    own = run(hmm, n=4, start="lm", steps=4)
    assert own.start == "lm"


def test_lengths_stay_within_their_bounds(bert):
    options = {"method": "metropolis", "energy": "norm", "lengths": (2, 4), "steps": 120}
    record = run(bert, n=64, chains=16, seed=1, **options)
    assert {sampled.tokens for sampled in record.texts} == {2, 3, 4}
    assert 0 < record.diagnostics.resize_acceptance_rate < 1
    long = run(bert, n=64, chains=16, seed=1, token_cost=-6.0, **options)
    assert sum(sampled.tokens for sampled in long.texts) > sum(
        sampled.tokens for sampled in record.texts
    )


def test_special_tokens_are_never_sampled(bert):
    allowed = allowed_tokens(WORDS.vocabulary, WORDS.vocabulary.size).nonzero()[:, 0].tolist()
    assert allowed == [1, *range(5, WORDS.vocabulary.size)]
    record = run(bert, n=64, start="random", length=5, temperature=5.0, steps=10)
    assert all("<" not in sampled.text.replace("<unk>", "") for sampled in record.texts)


# Scans and schedules ----------------------------------------------------------------------------


def test_systematic_scan_sweeps_the_free_positions():
    free = torch.tensor([[False, True, True, False, True, False], [False, True] + [False] * 4])
    steps = [SystematicScan(2).positions(free, step=step) for step in range(3)]
    first = [step[0].nonzero()[:, 0].tolist() for step in steps]
    second = [step[1].nonzero()[:, 0].tolist() for step in steps]
    assert first == [[1, 2], [4], [1, 2]]
    assert second == [[1], [1], [1]]


def test_random_scan_is_uniform_over_position_sets():
    """Three sets of two among three positions: 3,000 samples, a deviation of √(3000 · 2/9) ≈ 26."""
    free = torch.tensor([[False, True, False, True, True]]).expand(3000, -1)
    selected = RandomScan(2).positions(free, step=0, generator=torch.Generator().manual_seed(0))
    assert (selected.sum(1) == 2).all() and not (selected & ~free).any()
    counts = [int((selected[:, a] & selected[:, b]).sum()) for a, b in ((1, 3), (1, 4), (3, 4))]
    assert all(abs(count - 1000) < 5 * 26 for count in counts)


def test_temperature_is_annealed_during_burn_in():
    schedule = ChainSchedule(
        steps=20, burn_in=4, thin=1, samples_per_chain=1, temperature=1.0, initial_temperature=16.0
    )
    assert [schedule.temperature_at(step) for step in range(6)] == [16, 8, 4, 2, 1, 1]


def test_schedule_keeps_the_last_thinned_samples():
    schedule = ChainSchedule(steps=20, burn_in=5, thin=4, samples_per_chain=3)
    assert [done for done in range(1, 21) if schedule.is_sample(done)] == [12, 16, 20]


def test_samples_are_spread_over_chains_and_steps(bert):
    record = run(bert, n=6, chains=2, steps=20, burn_in=8, thin=3, length=3)
    assert [(sampled.step, sampled.chain) for sampled in record.texts] == [
        (step, chain) for step in (14, 17, 20) for chain in (0, 1)
    ]


def test_annealing_masks_and_order_combine(bert):
    record = run(bert, n=2, masks=2, order="sequential", anneal=5.0, length=5, steps=30)
    assert (record.order, record.masks, record.anneal) == ("sequential", 2, 5.0)
    assert len(record.texts) == 2


# Records and diagnostics ------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["gibbs", "metropolis"])
@pytest.mark.parametrize("energy", ["raw", "norm"])
def test_reported_energies_equal_the_texts_energies(bert, method, energy):
    record = run(bert, n=5, method=method, energy=energy, length=4, steps=12)
    target = {"raw": LogitEnergy, "norm": PseudoLikelihoodEnergy}[energy](bert)
    for sampled in record.texts:
        row = row_of(sampled.text)
        assert sampled.energy == pytest.approx(
            float(target.energies(pad_rows([row], bert))), abs=1e-4
        )


def row_of(text: str) -> list[int]:
    return [2, *WORDS.encode(text.replace("<unk>", "zebra")), 3]


@pytest.mark.parametrize("method", ["gibbs", "metropolis"])
@pytest.mark.parametrize("pooling", ["all", "blanks", "stopped"])
@pytest.mark.parametrize(
    ("form", "positions"),
    [
        ({"template": "the <mask> sees a <mask>"}, [2, 5]),
        ({"prefix": "the dog", "length": 2}, [3, 4]),
        ({"text": "the cat sees a dog", "positions": (3,)}, [3]),
    ],
)
def test_template_energies_are_conditioned_on_blanks(method, pooling, form, positions):
    """E(x, blanks), which is E(x) only where energies are pooled over all positions."""
    ebm = build("ebm", scale=2.0, pooling=pooling)
    record = run(ebm, n=4, method=method, steps=6, **form)
    batch = pad_rows([row_of(sampled.text) for sampled in record.texts], ebm)
    blanks = torch.zeros_like(batch.tokens, dtype=torch.bool)
    blanks[:, positions] = True
    with torch.no_grad():
        direct, whole = ebm.energy(batch, blanks), ebm.energy(batch)
    energies = torch.tensor([sampled.energy for sampled in record.texts])
    torch.testing.assert_close(energies, direct, atol=1e-4, rtol=0.0)
    assert bool(((direct - whole).abs() > 1e-2).all()) == (pooling != "all")


@pytest.mark.parametrize("pooling", ["all", "blanks", "stopped"])
@pytest.mark.parametrize("form", [{"length": 4}, {"template": "<mask> <mask>"}])
def test_energies_without_template_are_of_whole_texts(pooling, form):
    ebm = build("ebm", scale=2.0, pooling=pooling)
    record = run(ebm, n=4, method="metropolis", steps=6, **form)
    with torch.no_grad():
        whole = ebm.energy(pad_rows([row_of(sampled.text) for sampled in record.texts], ebm))
    energies = torch.tensor([sampled.energy for sampled in record.texts])
    torch.testing.assert_close(energies, whole, atol=1e-4, rtol=0.0)


def test_own_energy_is_given_the_blanks_of_each_row(bert):
    class SumOfTokens:
        def energy(self, batch, blanks=None):
            return (batch.tokens if blanks is None else batch.tokens * blanks).sum(1)

    batch = pad_rows([[2, 5, 6, 3], [2, 7, 8, 3]], bert)
    blanks = torch.tensor([[False, True, False, False], [False, False, True, False]])
    assert SystemEnergy(SumOfTokens()).energies(batch, blanks).tolist() == [5.0, 8.0]
    assert SystemEnergy(SumOfTokens()).energies(batch).tolist() == [16.0, 20.0]


def test_the_same_seed_gives_the_same_texts(bert):
    one, same, other = (run(bert, n=4, length=6, steps=30, seed=seed) for seed in (3, 3, 4))
    assert one.texts == same.texts
    assert one.texts != other.texts


def test_gibbs_accepts_all_proposals_and_metropolis_some(bert):
    gibbs = run(bert, n=4, length=5, steps=60)
    metropolis = run(bert, n=4, length=5, steps=60, method="metropolis", proposal="uniform")
    assert gibbs.diagnostics.acceptance_rate == 1
    assert 0 < metropolis.diagnostics.change_rate <= metropolis.diagnostics.acceptance_rate < 1


def test_trace_records_the_start_and_regular_steps(bert):
    gibbs = run(bert, n=1, chains=3, length=5, steps=60)
    assert gibbs.trace.every == 5  # a sweep
    assert [len(row) for row in gibbs.trace.energies] == [13, 13, 13]
    assert len(gibbs.trace.accepted) == 12
    assert gibbs.diagnostics.recorded == 3 * 7  # steps 30, 35 … 60
    metropolis = run(bert, n=1, chains=3, length=5, steps=60, method="metropolis")
    assert (metropolis.trace.every, metropolis.diagnostics.recorded) == (1, 3 * 31)


def test_unmixed_chains_are_warned_of_with_r_hat():
    """At so low a temperature that each chain stays in its first local minimum."""
    record = run(
        build("bert", scale=4.0),
        n=8,
        method="metropolis",
        start="random",
        length=8,
        temperature=0.02,
        steps=200,
    )
    assert record.diagnostics.r_hat > 1.1
    assert any("R-hat" in sentence for sentence in record.warnings)


def test_mixed_chains_have_no_warning(bert):
    record = run(bert, n=8, method="metropolis", template="the <mask> sleeps", steps=300)
    assert record.diagnostics.r_hat < 1.05
    assert record.warnings == ()
    assert record.diagnostics.effective_sample_size > 100


def test_r_hat_compares_chains_of_equal_length_only(bert, hmm):
    """Their distributions differ, so they can't agree; R-hat is computed for each length."""
    record = run(
        bert, n=8, start="lm", lm=(hmm, WORDS), length=4, steps=200, chains=8, method="metropolis"
    )
    assert len({sampled.tokens for sampled in record.texts}) > 1
    assert record.diagnostics.r_hat < 1.1


def test_interrupted_chains_return_current_samples(bert):
    def stop(done: int, of: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    record = run(bert, n=4, length=3, steps=100, method="metropolis", progress=stop)
    assert record.interrupted and record.steps == 5
    assert [sampled.step for sampled in record.texts] == [5] * 4


def test_many_chains_need_no_more_forward_passes(bert):
    class Counting(type(bert)):
        calls = 0

        def fill(self, batch, masked, **words):
            type(self).calls += 1
            return super().fill(batch, masked, **words)

    counted = build("bert")
    counted.__class__ = Counting
    calls = []
    for chains in (1, 64):
        Counting.calls = 0
        run(counted, n=1, chains=chains, length=5, steps=30)
        calls.append(Counting.calls)
    assert calls == [35, 35]  # five for the masked initialisation, one per step


def test_default_energy_depends_on_the_system(bert, hmm):
    assert make_energy(bert).formula == "-Σ_t logit(x_t | x without x_t)"
    assert make_energy(hmm).formula == "-log p(x)"
    assert make_energy(build("ebm")).formula == "the system's own energy"
    assert make_energy(build("electra")).name == "norm"


def test_energy_model_accepts_uniform_and_unigram_proposals():
    ebm = build("ebm")
    for proposal in ("uniform", "unigram"):
        record = run(ebm, n=2, method="metropolis", proposal=proposal, length=4, steps=20)
        assert (record.proposal, record.energy) == (proposal, "own")


def test_gibbs_proposal_defaults_to_fill(bert):
    named, unnamed = (
        run(bert, n=4, length=5, steps=10, proposal=proposal) for proposal in ("fill", None)
    )
    assert named.texts == unnamed.texts
    assert named.proposal == unnamed.proposal == "fill"


def test_unigram_and_uniform_proposals_by_hand():
    """the: 6 of 39 tokens, dog: 9; each of the 7 allowed tokens has one more."""
    vocabulary = WORDS.vocabulary
    unigram = unigram_proposal(LINES, WORDS, vocabulary).token_log_probs.exp()
    counts = {"the": 9, "dog": 9, "cat": 6, "sees": 6, "a": 6, "sleeps": 3}
    for word, count in counts.items():
        assert float(unigram[WORDS.id(word)]) == pytest.approx((count + 1) / (39 + 7))
    uniform = uniform_proposal(Vocabulary(size=7)).token_log_probs.exp()
    assert uniform.tolist() == pytest.approx([0, 1 / 3, 0, 0, 0, 1 / 3, 1 / 3])


# Errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": "the dog sleeps"}, "has none; insert"),
        ({"template": "the [MSK] sleeps"}, "did you mean '[MASK]'"),
        (
            {"text": "the dog", "positions": (3,)},
            "must be from 1 to 2, the tokens of the text, got 3",
        ),
        ({"text": "the dog", "positions": (0,)}, "got 0"),
        ({"positions": (1,)}, "give it by --text"),
        ({"text": " "}, "is empty"),
        ({"start": "text"}, "give it by --text"),
        ({"start": "noise"}, "no start called 'noise'"),
        ({"text": "the dog", "template": "the <mask>"}, "got template and text"),
        ({"text": "the dog", "length": 3}, "--length does not apply"),
        ({"text": "the dog", "start": "random"}, "remove one"),
        ({"start": "lm", "prefix": "the"}, "template or prefix does not apply"),
        ({"start": "lm"}, "needs a system with Step"),
        ({"method": "gibs"}, "did you mean 'gibbs'"),
        ({"order": "backwards"}, "no order called"),
        ({"energy": "kinetic"}, "no energy called"),
        ({"energy": "own"}, "needs a system with Energy"),
        ({"proposal": "gauss"}, "no proposal called"),
        ({"n": 0}, "1 or more, got 0"),
        ({"chains": 0}, "1 or more, got 0"),
        ({"chains": 10**6}, "chains must be at most 4096"),
        ({"masks": 0}, "1 or more, got 0"),
        ({"masks": 11}, "--masks must be at most 10"),
        ({"length": 0}, "1 or more, got 0"),
        ({"length": 1000}, "must have at most"),
        ({"steps": 0}, "1 or more, got 0"),
        ({"steps": 10, "burn_in": 10}, "0 remain after the burn-in"),
        ({"burn_in": -1}, "0 or more, got -1"),
        ({"thin": 0}, "1 or more, got 0"),
        ({"n": 100, "chains": 1, "steps": 60, "thin": 2}, "need 199 steps, and 30 remain"),
        ({"temperature": 0.0}, "above 0, got 0"),
        ({"temperature": math.nan}, "above 0, got nan"),
        ({"anneal": -1.0}, "above 0, got -1"),
        ({"anneal": 3.0, "burn_in": 0}, "there is none"),
        ({"seed": -1}, "a seed must be"),
        ({"lengths": (2, 4)}, "only to --method metropolis"),
        ({"proposal_temperature": 2.0}, "only to --method metropolis"),
        ({"proposal": "uniform"}, "--proposal uniform does not apply to --method gibbs"),
        ({"proposal": "unigram"}, "--proposal unigram does not apply to --method gibbs"),
        ({"method": "metropolis", "proposal": "gauss"}, "no proposal called"),
        ({"method": "metropolis", "proposal_temperature": 0.0}, "above 0"),
        ({"method": "metropolis", "lengths": (4, 2)}, "got 4 to 2"),
        ({"method": "metropolis", "lengths": (2, 4), "length": 9}, "a chain starts from 9"),
        ({"method": "metropolis", "lengths": (2, 400)}, "must have at most"),
        (
            {"method": "metropolis", "lengths": (2, 4), "prefix": "the"},
            "--lengths does not apply to a text with fixed",
        ),
        ({"method": "metropolis", "token_cost": math.inf}, "must be a finite number"),
    ],
)
def test_invalid_options_are_reported(bert, options, message):
    with pytest.raises(UserError) as error:
        run(bert, **options)
    assert message in str(error.value)


def test_unsupported_system_is_reported_with_alternatives():
    with pytest.raises(UserError, match=r"needs a system with Fill.*bert"):
        run(build("lstm"), method="metropolis")


def test_gibbs_error_lists_only_systems_with_fill():
    """residual-ebm has Energy without Fill: metropolis supports it, gibbs does not."""
    gpt = build("gpt")
    messages = {}
    for method in ("gibbs", "metropolis"):
        with pytest.raises(UserError) as error:
            run(gpt, method=method)
        messages[method] = str(error.value)
    able = [name for name, card in catalogue().items() if "Fill" in card.protocols]
    assert "residual-ebm" not in able
    assert messages["gibbs"].startswith(
        "the method gibbs needs a system with Fill, which this one lacks"
    )
    assert f"{', '.join(able[:8])} and {len(able) - 8} more" in messages["gibbs"]
    assert "residual-ebm" in messages["metropolis"]


def test_nan_scores_are_reported():
    broken = build("bert")
    with torch.no_grad():
        for parameter in broken.parameters():
            parameter.fill_(math.nan)
    with pytest.raises(UserError, match="are NaN"):
        run(broken, length=3, steps=3)


def test_sample_tokens_follows_the_distribution():
    """30,000 draws: √(n p (1 - p)) is at most 87; tokens of probability 0 never occur."""
    log_probs = torch.tensor([0.0, 0.2, 0.0, 0.5, 0.3, 0.0]).log().expand(30000, -1)
    counts = sample_tokens(log_probs, torch.Generator().manual_seed(0)).bincount(minlength=6)
    expected = torch.tensor([0, 6000, 0, 15000, 9000, 0])
    assert (counts - expected).abs().max() < 5 * 87
    assert counts[[0, 2, 5]].sum() == 0
