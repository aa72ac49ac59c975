"""Chains as a whole: what moves and what stays, what is kept, what is told, what is refused."""

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


# What moves -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["gibbs", "metropolis"])
@pytest.mark.parametrize("symbol", ["<mask>", "[MASK]"])
def test_only_the_blanks_of_a_template_move(bert, method, symbol):
    template = f"the {symbol} sees a {symbol}"
    found = run(bert, n=12, method=method, template=template, steps=30, chains=4)
    words = [text.text.split() for text in found.texts]
    assert len(words) == 12
    assert all((each[0], each[2], each[3]) == ("the", "sees", "a") for each in words)
    assert len({each[1] for each in words}) > 1 and len({each[4] for each in words}) > 1


def test_a_prefix_stays_and_as_many_tokens_as_asked_follow(bert):
    found = run(bert, n=3, prefix="the dog", length=4, steps=12)
    assert all(each.text.startswith("the dog ") and each.tokens == 6 for each in found.texts)


def test_all_tokens_of_a_text_move_or_those_at_some_positions(bert):
    text = "the cat sees a dog"
    free = run(bert, n=8, text=text, steps=40)
    columns = list(zip(*(each.text.split() for each in free.texts), strict=True))
    assert all(len(set(column)) > 1 for column in columns)
    some = run(bert, n=8, text=text, positions=(2, 5), steps=40)
    columns = list(zip(*(each.text.split() for each in some.texts), strict=True))
    assert [len(set(column)) > 1 for column in columns] == [False, True, False, False, True]
    assert (free.start, some.start) == ("text", "text")


def test_a_start_from_samples_has_their_lengths(bert, hmm):
    torch.manual_seed(0)
    found = run(bert, n=8, start="lm", lm=(hmm, WORDS), length=6, steps=20, chains=8)
    lengths = {each.tokens for each in found.texts}
    assert lengths <= set(range(1, 7)) and len(lengths) > 1
    own = run(hmm, n=4, start="lm", steps=4)
    assert own.start == "lm"


def test_lengths_change_within_their_bounds(bert):
    options = {"method": "metropolis", "energy": "norm", "lengths": (2, 4), "steps": 120}
    found = run(bert, n=64, chains=16, seed=1, **options)
    assert {each.tokens for each in found.texts} == {2, 3, 4}
    assert 0 < found.diagnostics.resize_acceptance_rate < 1
    long = run(bert, n=64, chains=16, seed=1, token_cost=-6.0, **options)
    assert sum(each.tokens for each in long.texts) > sum(each.tokens for each in found.texts)


def test_symbols_never_come_into_a_text(bert):
    allowed = allowed_tokens(WORDS.vocabulary, WORDS.vocabulary.size).nonzero()[:, 0].tolist()
    assert allowed == [1, *range(5, WORDS.vocabulary.size)]
    found = run(bert, n=64, start="random", length=5, temperature=5.0, steps=10)
    assert all("<" not in each.text.replace("<unk>", "") for each in found.texts)


# Orders and schedules ---------------------------------------------------------------------------


def test_sequential_places_sweep_the_free_ones_of_each_row():
    free = torch.tensor([[False, True, True, False, True, False], [False, True] + [False] * 4])
    steps = [SystematicScan(2).positions(free, step=step) for step in range(3)]
    first = [step[0].nonzero()[:, 0].tolist() for step in steps]
    second = [step[1].nonzero()[:, 0].tolist() for step in steps]
    assert first == [[1, 2], [4], [1, 2]]
    assert second == [[1], [1], [1]]


def test_random_places_are_every_set_as_often():
    """Three sets of two among three places: 3,000 draws, a deviation of √(3000 · 2/9) ≈ 26."""
    free = torch.tensor([[False, True, False, True, True]]).expand(3000, -1)
    drawn = RandomScan(2).positions(free, step=0, generator=torch.Generator().manual_seed(0))
    assert (drawn.sum(1) == 2).all() and not (drawn & ~free).any()
    counts = [int((drawn[:, a] & drawn[:, b]).sum()) for a, b in ((1, 3), (1, 4), (3, 4))]
    assert all(abs(count - 1000) < 5 * 26 for count in counts)


def test_the_temperature_falls_through_the_burn_in_and_stays():
    schedule = ChainSchedule(
        steps=20, burn_in=4, thin=1, samples_per_chain=1, temperature=1.0, initial_temperature=16.0
    )
    assert [schedule.temperature_at(step) for step in range(6)] == [16, 8, 4, 2, 1, 1]


def test_kept_texts_are_the_last_ones_thinned():
    schedule = ChainSchedule(steps=20, burn_in=5, thin=4, samples_per_chain=3)
    assert [done for done in range(1, 21) if schedule.is_sample(done)] == [12, 16, 20]


def test_texts_are_spread_over_chains_and_steps(bert):
    found = run(bert, n=6, chains=2, steps=20, burn_in=8, thin=3, length=3)
    assert [(each.step, each.chain) for each in found.texts] == [
        (step, chain) for step in (14, 17, 20) for chain in (0, 1)
    ]


def test_annealing_and_masks_and_orders_run_together(bert):
    found = run(bert, n=2, masks=2, order="sequential", anneal=5.0, length=5, steps=30)
    assert (found.order, found.masks, found.anneal) == ("sequential", 2, 5.0)
    assert len(found.texts) == 2


# What is told -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["gibbs", "metropolis"])
@pytest.mark.parametrize("energy", ["raw", "norm"])
def test_energies_are_those_of_the_texts(bert, method, energy):
    found = run(bert, n=5, method=method, energy=energy, length=4, steps=12)
    target = {"raw": LogitEnergy, "norm": PseudoLikelihoodEnergy}[energy](bert)
    for each in found.texts:
        row = row_of(each.text)
        assert each.energy == pytest.approx(float(target.energies(pad_rows([row], bert))), abs=1e-4)


def row_of(text: str) -> list[int]:
    return [2, *WORDS.encode(text.replace("<unk>", "zebra")), 3]


@pytest.mark.parametrize("method", ["gibbs", "metropolis"])
@pytest.mark.parametrize("pooling", ["all", "blanks", "stopped"])
@pytest.mark.parametrize(
    ("form", "places"),
    [
        ({"template": "the <mask> sees a <mask>"}, [2, 5]),
        ({"prefix": "the dog", "length": 2}, [3, 4]),
        ({"text": "the cat sees a dog", "positions": (3,)}, [3]),
    ],
)
def test_energies_of_a_template_are_those_of_its_blanks(method, pooling, form, places):
    """E(x, blanks), which is E(x) only where energies are pooled over all places."""
    ebm = build("ebm", scale=2.0, pooling=pooling)
    found = run(ebm, n=4, method=method, steps=6, **form)
    batch = pad_rows([row_of(each.text) for each in found.texts], ebm)
    blanks = torch.zeros_like(batch.tokens, dtype=torch.bool)
    blanks[:, places] = True
    with torch.no_grad():
        direct, whole = ebm.energy(batch, blanks), ebm.energy(batch)
    energies = torch.tensor([each.energy for each in found.texts])
    torch.testing.assert_close(energies, direct, atol=1e-4, rtol=0.0)
    assert bool(((direct - whole).abs() > 1e-2).all()) == (pooling != "all")


@pytest.mark.parametrize("pooling", ["all", "blanks", "stopped"])
@pytest.mark.parametrize("form", [{"length": 4}, {"template": "<mask> <mask>"}])
def test_energies_without_a_template_are_those_of_whole_texts(pooling, form):
    ebm = build("ebm", scale=2.0, pooling=pooling)
    found = run(ebm, n=4, method="metropolis", steps=6, **form)
    with torch.no_grad():
        whole = ebm.energy(pad_rows([row_of(each.text) for each in found.texts], ebm))
    energies = torch.tensor([each.energy for each in found.texts])
    torch.testing.assert_close(energies, whole, atol=1e-4, rtol=0.0)


def test_an_energy_that_knows_no_templates_is_asked_for_the_whole_text(bert):
    class SumOfTokens:
        def energy(self, batch):
            return batch.tokens.sum(1)

    batch = pad_rows([[2, 5, 6, 3], [2, 7, 7, 3]], bert)
    blanks = torch.tensor([[False, True, False, False]] * 2)
    assert SystemEnergy(SumOfTokens()).energies(batch, blanks).tolist() == [16.0, 19.0]


def test_the_same_seed_gives_the_same_texts(bert):
    one, same, other = (run(bert, n=4, length=6, steps=30, seed=seed) for seed in (3, 3, 4))
    assert one.texts == same.texts
    assert one.texts != other.texts


def test_gibbs_accepts_all_and_metropolis_some(bert):
    gibbs = run(bert, n=4, length=5, steps=60)
    metropolis = run(bert, n=4, length=5, steps=60, method="metropolis", proposal="uniform")
    assert gibbs.diagnostics.acceptance_rate == 1
    assert 0 < metropolis.diagnostics.change_rate <= metropolis.diagnostics.acceptance_rate < 1


def test_a_trace_has_a_reading_at_the_start_and_every_so_often(bert):
    gibbs = run(bert, n=1, chains=3, length=5, steps=60)
    assert gibbs.trace.every == 5  # a sweep
    assert [len(row) for row in gibbs.trace.energies] == [13, 13, 13]
    assert len(gibbs.trace.accepted) == 12
    assert gibbs.diagnostics.recorded == 3 * 7  # steps 30, 35 … 60
    metropolis = run(bert, n=1, chains=3, length=5, steps=60, method="metropolis")
    assert (metropolis.trace.every, metropolis.diagnostics.recorded) == (1, 3 * 31)


def test_chains_that_cannot_mix_are_told_of_with_their_r_hat():
    """So cold that each chain stays in the first dent it falls into."""
    found = run(
        build("bert", scale=4.0),
        n=8,
        method="metropolis",
        start="random",
        length=8,
        temperature=0.02,
        steps=200,
    )
    assert found.diagnostics.r_hat > 1.1
    assert any("R-hat" in sentence for sentence in found.warnings)


def test_chains_that_mix_are_not_warned_of(bert):
    found = run(bert, n=8, method="metropolis", template="the <mask> sleeps", steps=300)
    assert found.diagnostics.r_hat < 1.05
    assert found.warnings == ()
    assert found.diagnostics.effective_sample_size > 100


def test_chains_of_different_lengths_are_not_held_against_each_other(bert, hmm):
    """Their laws are different, so that they can't agree; each length is judged by itself."""
    found = run(
        bert, n=8, start="lm", lm=(hmm, WORDS), length=4, steps=200, chains=8, method="metropolis"
    )
    assert len({each.tokens for each in found.texts}) > 1
    assert found.diagnostics.r_hat < 1.1


def test_interrupted_chains_give_what_there_is(bert):
    def stop(done: int, of: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    found = run(bert, n=4, length=3, steps=100, method="metropolis", progress=stop)
    assert found.interrupted and found.steps == 5
    assert [each.step for each in found.texts] == [5] * 4


def test_many_chains_take_no_more_passes_than_one(bert):
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
    assert calls == [35, 35]  # five for the masked start, one a step


def test_the_default_energy_is_what_a_system_defines(bert, hmm):
    assert make_energy(bert).formula == "-Σ_t logit(x_t | x without x_t)"
    assert make_energy(hmm).formula == "-log p(x)"
    assert make_energy(build("ebm")).formula == "the system's own energy"
    assert make_energy(build("electra")).name == "norm"


def test_an_energy_model_runs_by_uniform_and_unigram_proposals():
    ebm = build("ebm")
    for proposal in ("uniform", "unigram"):
        found = run(ebm, n=2, method="metropolis", proposal=proposal, length=4, steps=20)
        assert (found.proposal, found.energy) == (proposal, "own")


def test_gibbs_draws_from_the_fillings_whether_they_are_named_or_not(bert):
    named, unnamed = (run(bert, n=4, length=5, steps=10, proposal=each) for each in ("fill", None))
    assert named.texts == unnamed.texts
    assert named.proposal == unnamed.proposal == "fill"


def test_proposals_without_context_by_hand():
    """the: 6 of 39 tokens, dog: 9; each of the 7 allowed tokens has one more."""
    vocabulary = WORDS.vocabulary
    law = unigram_proposal(LINES, WORDS, vocabulary).token_log_probs.exp()
    counts = {"the": 9, "dog": 9, "cat": 6, "sees": 6, "a": 6, "sleeps": 3}
    for word, count in counts.items():
        assert float(law[WORDS.id(word)]) == pytest.approx((count + 1) / (39 + 7))
    even = uniform_proposal(Vocabulary(size=7)).token_log_probs.exp()
    assert even.tolist() == pytest.approx([0, 1 / 3, 0, 0, 0, 1 / 3, 1 / 3])


# What is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
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
def test_mistakes_are_told_in_a_sentence(bert, options, said):
    with pytest.raises(UserError) as error:
        run(bert, **options)
    assert said in str(error.value)


def test_a_system_that_can_not_is_told_who_can():
    with pytest.raises(UserError, match=r"needs a system with Fill.*bert"):
        run(build("lstm"), method="metropolis")


def test_gibbs_names_only_systems_with_fillings():
    """residual-ebm has an energy and no fillings: metropolis can do with it, gibbs can't."""
    gpt = build("gpt")
    told = {}
    for method in ("gibbs", "metropolis"):
        with pytest.raises(UserError) as error:
            run(gpt, method=method)
        told[method] = str(error.value)
    able = [name for name, card in catalogue().items() if "Fill" in card.protocols]
    assert "residual-ebm" not in able
    assert told["gibbs"].startswith(
        "the method gibbs needs a system with Fill, which this one lacks"
    )
    assert f"{', '.join(able[:8])} and {len(able) - 8} more" in told["gibbs"]
    assert "residual-ebm" in told["metropolis"]


def test_a_model_gone_wrong_is_told():
    broken = build("bert")
    with torch.no_grad():
        for parameter in broken.parameters():
            parameter.fill_(math.nan)
    with pytest.raises(UserError, match="are NaN"):
        run(broken, length=3, steps=3)


def test_tokens_are_drawn_as_often_as_their_law_says():
    """30,000 draws: √(n p (1 - p)) is at most 87; what can't come never does."""
    law = torch.tensor([0.0, 0.2, 0.0, 0.5, 0.3, 0.0]).log().expand(30000, -1)
    found = sample_tokens(law, torch.Generator().manual_seed(0)).bincount(minlength=6)
    expected = torch.tensor([0, 6000, 0, 15000, 9000, 0])
    assert (found - expected).abs().max() < 5 * 87
    assert found[[0, 2, 5]].sum() == 0
