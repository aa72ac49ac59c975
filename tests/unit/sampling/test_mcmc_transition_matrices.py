"""MCMC transition matrices over enumerable texts: steps and stationary distributions."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch
from benchmarks.transition_matrices import (
    TextSpace,
    boltzmann_distribution,
    gibbs_kl_divergence,
    insert_delete_transition_matrix,
    kl_divergence,
    resample_transition_matrix,
    scan_transition_matrix,
    stationary_distribution,
    text_space,
    total_variation,
)

from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.sampling.mcmc.acceptance import GibbsAcceptance, MetropolisHastings
from lmlab.sampling.mcmc.energy import (
    LengthPenalisedEnergy,
    LogitEnergy,
    LogProbEnergy,
    PseudoLikelihoodEnergy,
    SystemEnergy,
)
from lmlab.sampling.mcmc.moves import ChainState, InsertDeleteMove, ResampleMove
from lmlab.sampling.mcmc.proposals import MaskedLMProposal, uniform_proposal
from lmlab.sampling.mcmc.schedule import RandomScan, SystematicScan

LENGTH = 3
VOCABULARY = Vocabulary(size=8)
"""<unk> and three words: 4³ = 64 texts."""


def build(name: str, *, size: int = 8, scale: float = 1.0, seed: int = 0, **settings):
    """A random system in doubles; `scale` > 1 makes its conditionals sharp and inconsistent."""
    torch.manual_seed(seed)
    module = system_module(name)
    config = replace(module.SIZES["tiny"], **settings)
    system = module.build(config, Vocabulary(size=size)).double().eval()
    with torch.no_grad():
        for parameter in system.parameters():
            if parameter.ndim > 1:
                parameter.mul_(scale)
    return system.requires_grad_(False)


@pytest.fixture(scope="module")
def bert():
    return build("bert", scale=2.0)


@pytest.fixture(scope="module")
def ebm():
    return build("ebm", scale=2.0)


@pytest.fixture(scope="module")
def hmm():
    return build("hmm", scale=3.0)


def all_targets(bert, ebm):
    return {
        "raw": (bert, LogitEnergy(bert)),
        "norm": (bert, PseudoLikelihoodEnergy(bert)),
        "own": (ebm, SystemEnergy(ebm)),
    }


# Metropolis -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["random", "sequential"])
@pytest.mark.parametrize("masks", [1, 2])
@pytest.mark.parametrize("energy", ["raw", "norm", "own"])
def test_metropolis_stationary_distribution_is_boltzmann(bert, ebm, energy, masks, order):
    system, target = all_targets(bert, ebm)[energy]
    # The energy model's fillings need a pass per candidate, so proposals are uniform instead.
    proposal = uniform_proposal(VOCABULARY) if energy == "own" else MaskedLMProposal(system)
    space = text_space(system, [LENGTH])
    energies = target.energies(space.batch)
    matrix = scan_transition_matrix(
        space, order, masks, proposal, MetropolisHastings(target), energies
    )
    boltzmann = torch.softmax(-energies, 0)
    assert len(space.texts) == 4**LENGTH
    assert energies.std() > 0.1, "equal energies would prove nothing"
    assert (matrix.sum(1) - 1).abs().max() < 1e-12
    assert (matrix >= 0).all()
    assert (stationary_distribution(matrix) - boltzmann).abs().max() < 1e-6
    assert (boltzmann @ matrix - boltzmann).abs().max() < 1e-12


def test_metropolis_step_satisfies_detailed_balance(bert):
    """Detailed balance: π(x) P(x → x') = π(x') P(x' → x)."""
    space, target = text_space(bert, [LENGTH]), LogitEnergy(bert)
    energies = target.energies(space.batch)
    for positions in ((2,), (1, 3)):
        matrix = resample_transition_matrix(
            space, positions, MaskedLMProposal(bert), MetropolisHastings(target), energies
        )
        flow = boltzmann_distribution(target, space)[:, None] * matrix
        assert (flow - flow.t()).abs().max() < 1e-12


@pytest.mark.parametrize(("temperature", "proposal_temperature"), [(0.6, 1.0), (2.0, 0.7)])
def test_metropolis_corrects_for_both_temperatures(bert, temperature, proposal_temperature):
    space, target = text_space(bert, [LENGTH]), PseudoLikelihoodEnergy(bert)
    energies = target.energies(space.batch)
    matrix = scan_transition_matrix(
        space,
        "random",
        1,
        MaskedLMProposal(bert),
        MetropolisHastings(target),
        energies,
        temperature=temperature,
        proposal_temperature=proposal_temperature,
    )
    assert (
        stationary_distribution(matrix) - torch.softmax(-energies / temperature, 0)
    ).abs().max() < 1e-6


def test_transition_matrix_equals_its_definition(bert):
    """Every entry of a step at one random position, from separate fillings and energies."""
    space = text_space(bert, [2])
    log_q, energies = {}, {}
    for text in space.texts:
        row = torch.tensor([[2, *text, 3]])
        energy = 0.0
        for position in (1, 2):
            masked = torch.zeros_like(row, dtype=torch.bool)
            masked[0, position] = True
            batch = Batch(tokens=row, lengths=torch.tensor([4]), rows=torch.tensor([0]))
            energy -= float(bert.logits(batch, masked)[0, text[position - 1]])
            allowed_log_probs = bert.fill(batch, masked).log_probs[0, list(space.tokens)]
            log_q[text, position] = dict(
                zip(space.tokens, allowed_log_probs.log_softmax(0).tolist(), strict=True)
            )
        energies[text] = energy
    target = LogitEnergy(bert)
    matrix = scan_transition_matrix(
        space,
        "random",
        1,
        MaskedLMProposal(bert),
        MetropolisHastings(target),
        target.energies(space.batch),
    )
    for (i, x), (j, y) in itertools.permutations(enumerate(space.texts), 2):
        positions = [position for position in (1, 2) if x[position - 1] != y[position - 1]]
        if len(positions) == 2:
            assert matrix[i, j] == 0
            continue
        [position] = positions
        forward, backward = log_q[x, position][y[position - 1]], log_q[y, position][x[position - 1]]
        acceptance = min(1.0, math.exp(energies[x] - energies[y] + backward - forward))
        assert float(matrix[i, j]) == pytest.approx(math.exp(forward) * acceptance / 2, abs=1e-12)


# Sampled steps ----------------------------------------------------------------------------------


def chi_square_p(counts: torch.Tensor, shares: torch.Tensor) -> float:
    """p-value of Pearson's chi-square test; rare cells are pooled."""
    expected = shares * counts.sum()
    rare = expected < 5
    if rare.any():
        counts = torch.cat([counts[~rare], counts[rare].sum()[None]])
        expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
        if expected[-1] < 5:
            assert counts[-1] < 40
            counts, expected = counts[:-1], expected[:-1]
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


def text_counts(space, batch: Batch) -> torch.Tensor:
    """(S,) how often each text of a space is among the rows."""
    known = {text: index for index, text in enumerate(space.texts)}
    rows = zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)
    text_indices = [known[tuple(tokens[1 : length - 1])] for tokens, length in rows]
    return torch.bincount(torch.tensor(text_indices), minlength=len(known)).double()


@pytest.mark.parametrize("masks", [1, 2])
@pytest.mark.parametrize("method", ["gibbs", "metropolis"])
def test_sampled_steps_agree_with_the_matrix(bert, method, masks):
    space, target = text_space(bert, [LENGTH]), LogitEnergy(bert)
    energies, proposal = target.energies(space.batch), MaskedLMProposal(bert)
    kernel = GibbsAcceptance() if method == "gibbs" else MetropolisHastings(target)
    matrix = scan_transition_matrix(space, "random", masks, proposal, kernel, energies)
    move = ResampleMove(proposal=proposal, order=RandomScan(masks))
    generator = torch.Generator().manual_seed(1)
    for index in (0, 37):
        state = kernel.initialise(ChainState(batch=space.batch.select([index] * 2000)))
        proposed = move.propose(state, step=0, generator=generator)
        stepped = kernel.accept(state, proposed, generator=generator)
        counts = text_counts(space, stepped.state.batch)
        assert chi_square_p(counts, matrix[index]) > 1e-6
        same = text_counts(space, space.batch.select([index]))
        assert counts[same.bool()].sum() == (~stepped.changed).sum()


@dataclass(frozen=True)
class LookupTable:
    """A target and a proposal looked up by text, so that chains can be long."""

    space: object
    energy: torch.Tensor
    conditionals: torch.Tensor
    """(S, LENGTH, V) log-probabilities with one position masked."""
    name: str = "table"
    formula: str = ""
    size: int = 8

    def indices(self, batch: Batch) -> torch.Tensor:
        """Texts are ordered as base-4 numbers."""
        digits = torch.full((8,), -1)
        digits[list(self.space.tokens)] = torch.arange(4)
        digits_of_text = digits[batch.tokens[:, 1 : LENGTH + 1]]
        return (digits_of_text * torch.tensor([16, 4, 1])).sum(1)

    def energies(self, batch: Batch, blanks: torch.Tensor | None = None) -> torch.Tensor:
        return self.energy[self.indices(batch)]

    def log_probs(self, batch: Batch, masked: torch.Tensor) -> torch.Tensor:
        rows, positions = masked.nonzero(as_tuple=True)
        return self.conditionals[self.indices(batch)[rows], positions - 1]


def table_of(system, target) -> LookupTable:
    space = text_space(system, [LENGTH])
    conditionals = []
    for position in range(1, LENGTH + 1):
        masked = torch.zeros_like(space.batch.tokens, dtype=torch.bool)
        masked[:, position] = True
        conditionals.append(MaskedLMProposal(system).log_probs(space.batch, masked))
    return LookupTable(space, target.energies(space.batch), torch.stack(conditionals, 1))


@pytest.mark.parametrize("order", [RandomScan(1), SystematicScan(1)])
def test_long_chains_are_as_accurate_as_independent_samples(bert, order):
    """n independent draws have a total variation of ½ Σ_x √(2 p(1-p) / (π n)) on average.

    Many chains from texts all over the space; the matrix gives the mixing rate.
    """
    table = table_of(bert, PseudoLikelihoodEnergy(bert))
    target_distribution, kernel = torch.softmax(-table.energy, 0), MetropolisHastings(table)
    move, generator = ResampleMove(proposal=table, order=order), torch.Generator().manual_seed(2)
    matrix = scan_transition_matrix(
        table.space,
        order.name,
        1,
        MaskedLMProposal(bert),
        kernel,
        table.energies(table.space.batch),
    )
    rate = torch.linalg.eigvals(matrix).abs().sort().values[-2]
    assert rate ** (80 if order.name == "random" else 80 // LENGTH) < 1e-3
    state = kernel.initialise(ChainState(batch=table.space.batch.select(torch.arange(4000) % 64)))
    for step in range(81 if order.name == "sequential" else 80):
        proposed = move.propose(state, step=step, generator=generator)
        state = kernel.accept(state, proposed, generator=generator).state
    for n in (250, 1000, 4000):
        estimated = text_counts(table.space, state.batch.select(torch.arange(n))) / n
        expected = (
            float(
                (2 * target_distribution * (1 - target_distribution) / (math.pi * n)).sqrt().sum()
            )
            / 2
        )
        assert 0.6 < total_variation(estimated, target_distribution) / expected < 1.5


# Templates --------------------------------------------------------------------------------------


def template_space(system) -> TextSpace:
    """All texts 5 _ _: the first word is fixed, and the two after it are blanks."""
    space = text_space(system, [LENGTH])
    indices = [index for index, text in enumerate(space.texts) if text[0] == 5]
    texts = tuple(space.texts[index] for index in indices)
    return TextSpace(tokens=space.tokens, texts=texts, batch=space.batch.select(indices))


@pytest.mark.parametrize("pooling", ["blanks", "stopped"])
def test_metropolis_on_a_template_targets_the_blank_energy(pooling):
    """p(blanks | template) = exp(-E(x, blanks)) / Z over 4² texts, not a slice of exp(-E(x))."""
    system = build("ebm", scale=2.0, pooling=pooling)
    space, kernel = template_space(system), MetropolisHastings(SystemEnergy(system))
    fixed = torch.tensor([[False, True, False, False, False]])
    blanks = torch.tensor([[False, False, True, True, False]]).expand(len(space.texts), -1)
    target_distribution = torch.softmax(-system.energy(space.batch, blanks), 0)
    assert (
        total_variation(target_distribution, torch.softmax(-system.energy(space.batch), 0)) > 0.01
    )
    state = kernel.initialise(ChainState(batch=space.batch, fixed=fixed.expand_as(blanks)))
    proposal = MaskedLMProposal(system)
    steps = [
        resample_transition_matrix(space, (position,), proposal, kernel, state.energies)
        for position in (2, 3)
    ]
    matrix = torch.stack(steps).mean(0)
    assert len(space.texts) == 4**2
    assert (stationary_distribution(matrix) - target_distribution).abs().max() < 1e-6
    # Acceptance evaluates proposed and current texts with the same blanks.
    rows = ChainState(batch=space.batch.select([3] * 2000), fixed=fixed.expand(2000, -1))
    state, generator = kernel.initialise(rows), torch.Generator().manual_seed(4)
    move = ResampleMove(proposal=uniform_proposal(VOCABULARY), order=RandomScan(1))
    stepped = kernel.accept(
        state, move.propose(state, step=0, generator=generator), generator=generator
    )
    direct = system.energy(stepped.state.batch, blanks[:1].expand(2000, -1))
    assert stepped.changed.any()
    assert (stepped.state.energies - direct).abs().max() < 1e-9


# Gibbs ------------------------------------------------------------------------------------------


def test_gibbs_on_a_masked_lm_differs_from_its_energies(bert):
    """The conditionals of a masked model come from no joint distribution."""
    for target in (LogitEnergy(bert), PseudoLikelihoodEnergy(bert)):
        gap = gibbs_kl_divergence(bert, target, LENGTH)
        assert gap["total_variation"] > 0.05
        assert gap["divergence"] > 0.01
    # Nor is the stationary distribution unique: it depends on the scan order.
    assert gap["between_orders"] > 1e-3


@pytest.mark.parametrize("order", ["random", "sequential"])
@pytest.mark.parametrize(("name", "within"), [("hmm", 1e-6), ("ebm", 1e-5)])
def test_gibbs_on_consistent_conditionals_targets_the_joint(name, within, order):
    """An HMM's fillings are exact; so are an energy model's, summed here in single precision."""
    system = build(name, scale=3.0)
    system = system if name == "hmm" else system.float()
    target = LogProbEnergy(system) if name == "hmm" else SystemEnergy(system)
    space = text_space(system, [LENGTH])
    energies = target.energies(space.batch)
    target_distribution = torch.softmax(-energies, 0)
    matrix = scan_transition_matrix(
        space, order, 1, MaskedLMProposal(system), GibbsAcceptance(), energies
    )
    assert target_distribution.max() > 2 / len(target_distribution), (
        "a flat distribution would prove nothing"
    )
    assert (stationary_distribution(matrix) - target_distribution).abs().max() < within


def test_metropolis_corrects_independent_two_position_gibbs(hmm):
    """Each position is sampled with the other masked, as if they were independent."""
    space, target = text_space(hmm, [LENGTH]), LogProbEnergy(hmm)
    energies, proposal = target.energies(space.batch), MaskedLMProposal(hmm)
    target_distribution = torch.softmax(-energies, 0)
    gibbs = stationary_distribution(
        scan_transition_matrix(space, "random", 2, proposal, GibbsAcceptance(), energies)
    )
    metropolis = stationary_distribution(
        scan_transition_matrix(space, "random", 2, proposal, MetropolisHastings(target), energies)
    )
    assert total_variation(gibbs, target_distribution) > 1e-3
    assert total_variation(metropolis, target_distribution) < 1e-6


# Lengths ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lengths_space(bert):
    small = build("bert", size=7, scale=4.0)
    return small, text_space(small, [1, 2, 3])


@pytest.mark.parametrize(("cost", "temperature"), [(0.0, 1.0), (0.7, 1.0), (-0.4, 1.6)])
def test_insert_delete_chain_targets_the_penalised_energy(lengths_space, cost, temperature):
    system, space = lengths_space
    target = LengthPenalisedEnergy(target=PseudoLikelihoodEnergy(system), cost=cost)
    energies = target.energies(space.batch)
    move = InsertDeleteMove(proposal=MaskedLMProposal(system), min_length=1, max_length=3)
    matrix = insert_delete_transition_matrix(
        space, move, MetropolisHastings(target), energies, temperature
    )
    estimated = stationary_distribution(matrix)
    assert (estimated - torch.softmax(-energies / temperature, 0)).abs().max() < 1e-6
    # p(L) ∝ exp(-cost L / τ) Z_L, where Z_L sums the texts of a length without any cost.
    plain = target.target.energies(space.batch)
    lengths = torch.tensor([len(text) for text in space.texts])
    shares = torch.stack(
        [
            math.exp(-cost * n / temperature) * (-plain[lengths == n] / temperature).exp().sum()
            for n in (1, 2, 3)
        ]
    )
    by_length = torch.stack([estimated[lengths == n].sum() for n in (1, 2, 3)])
    assert (by_length - shares / shares.sum()).abs().max() < 1e-6


def test_sampled_insert_delete_moves_agree_with_the_matrix(lengths_space):
    """From a shortest, a middle and a longest text; aa is reached from a by two insertions."""
    system, space = lengths_space
    target = LengthPenalisedEnergy(target=PseudoLikelihoodEnergy(system), cost=0.2)
    move, kernel = (
        InsertDeleteMove(proposal=MaskedLMProposal(system), min_length=1, max_length=3),
        MetropolisHastings(target),
    )
    matrix = insert_delete_transition_matrix(space, move, kernel, target.energies(space.batch))
    generator = torch.Generator().manual_seed(3)
    for text in [(5,), (5, 6), (5, 5), (6, 5, 1)]:
        index = space.index(text)
        rows = space.batch.select([index] * 2000)
        state = kernel.initialise(ChainState(batch=rows))
        proposed = move.propose(state, step=0, generator=generator)
        stepped = kernel.accept(state, proposed, generator=generator)
        counts = text_counts(space, stepped.state.batch)
        assert chi_square_p(counts, matrix[index]) > 1e-6


def test_kl_divergence_and_total_variation_by_hand():
    one = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    other = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)
    assert total_variation(one, other) == pytest.approx(0.25)
    assert kl_divergence(one, other) == pytest.approx(0.5 * math.log(2))
