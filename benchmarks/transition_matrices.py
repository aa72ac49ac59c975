"""Transition matrices of MCMC kernels on enumerable spaces, and their stationary distributions.

An oracle for samplers that samples nothing: every outcome of every step is enumerated with the
probabilities that the proposal and the kernel themselves use.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.data.batches import pad_rows
from lmlab.sampling.mcmc.acceptance import AcceptanceRule, GibbsAcceptance
from lmlab.sampling.mcmc.energy import EnergyFunction
from lmlab.sampling.mcmc.moves import ChainState, InsertDeleteMove
from lmlab.sampling.mcmc.proposals import (
    MaskedLMProposal,
    ProposalDistribution,
    allowed_tokens,
    apply_temperature,
)

MAX_TEXTS = 4096
"""A matrix has its square."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TextSpace:
    """All texts of some lengths: S of them."""

    tokens: tuple[int, ...]
    """Tokens allowed at a position."""
    texts: tuple[tuple[int, ...], ...]
    batch: Batch
    """<s> x </s>, one text per row."""

    def index(self, text: Sequence[int]) -> int:
        return self.texts.index(tuple(text))

    @property
    def state(self) -> ChainState:
        """A chain at each of the texts."""
        return ChainState(batch=self.batch)


def text_space(system: Any, lengths: Sequence[int]) -> TextSpace:
    """All texts of these lengths over all allowed tokens."""
    vocabulary = system.vocabulary
    tokens = tuple(allowed_tokens(vocabulary, vocabulary.size).nonzero()[:, 0].tolist())
    count = sum(len(tokens) ** length for length in lengths)
    if count > MAX_TEXTS:
        raise UserError(f"there are {count} such texts, and at most {MAX_TEXTS} are enumerated.")
    texts = tuple(text for length in lengths for text in itertools.product(tokens, repeat=length))
    rows = [[vocabulary.start, *text, vocabulary.end] for text in texts]
    return TextSpace(tokens=tokens, texts=texts, batch=pad_rows(rows, system))


def boltzmann_distribution(
    target: EnergyFunction, space: TextSpace, temperature: float = 1.0
) -> Tensor:
    """(S,) exp(-E(x) / τ) / Z."""
    return torch.softmax(-target.energies(space.batch) / temperature, 0)


def resample_transition_matrix(
    space: TextSpace,
    places: Sequence[int],
    proposal: ProposalDistribution,
    kernel: AcceptanceRule,
    energies: Tensor,
    *,
    temperature: float = 1.0,
    proposal_temperature: float = 1.0,
) -> Tensor:
    """(S, S) P(x → x') of one step that masks these positions (1-based) of texts of one length.

    Rows are the current texts. `energies` (S,) are the target's. Cost: one pass over all texts.
    """
    masked = torch.zeros_like(space.batch.tokens, dtype=torch.bool)
    masked[:, list(places)] = True
    law = proposal.log_probs(space.batch, masked).double()
    law = apply_temperature(law, temperature * proposal_temperature)
    law = law.view(len(space.texts), len(places), -1)
    known = {text: index for index, text in enumerate(space.texts)}
    matrix = law.new_zeros(len(space.texts), len(space.texts))
    row = torch.arange(len(space.texts))
    backward = _together(law, [[text[p - 1] for p in places] for text in space.texts])
    for drawn in itertools.product(space.tokens, repeat=len(places)):
        after = torch.tensor([known[_with(text, places, drawn)] for text in space.texts])
        forward = _together(law, [drawn] * len(space.texts))
        chance = kernel.log_acceptance(energies, energies[after], forward, backward, temperature)
        matrix[row, after] += (forward + chance).exp()
    return _with_rejections(matrix)


def scan_transition_matrix(
    space: TextSpace,
    order: str,
    masks: int,
    proposal: ProposalDistribution,
    kernel: AcceptanceRule,
    energies: Tensor,
    **temperatures: float,
) -> Tensor:
    """(S, S) of one step at random positions, or of a sweep from left to right."""
    length = len(space.texts[0])
    places = range(1, length + 1)
    if order == "random":
        groups = list(itertools.combinations(places, masks))
    else:
        groups = [tuple(places[first : first + masks]) for first in range(0, length, masks)]
    steps = [
        resample_transition_matrix(space, group, proposal, kernel, energies, **temperatures)
        for group in groups
    ]
    if order == "random":
        return torch.stack(steps).mean(0)
    sweep = steps[0]
    for step in steps[1:]:
        sweep = sweep @ step
    return sweep


def insert_delete_transition_matrix(
    space: TextSpace,
    move: InsertDeleteMove,
    kernel: AcceptanceRule,
    energies: Tensor,
    temperature: float = 1.0,
) -> Tensor:
    """(S, S) of one insertion or deletion step; texts of all allowed lengths."""
    known = {text: index for index, text in enumerate(space.texts)}
    matrix = energies.new_zeros(len(known), len(known))
    start, end = int(space.batch.tokens[0, 0]), int(space.batch.tokens[0, len(space.texts[0]) + 1])
    for index, text in enumerate(space.texts):
        for place in range(len(text) + 1):
            if len(text) == move.max_length:
                break
            law = _law_at(move, (start, *text[:place], start, *text[place:], end), place + 1)
            law = apply_temperature(law, temperature)
            for token in space.tokens:
                longer = known[(*text[:place], token, *text[place:])]
                zero = torch.zeros((), dtype=law.dtype)
                put = kernel.log_acceptance(
                    energies[index], energies[longer], law[token], zero, temperature
                )
                taken = kernel.log_acceptance(
                    energies[longer], energies[index], zero, law[token], temperature
                )
                choice = 0.5 / (len(text) + 1)
                matrix[index, longer] += choice * (law[token] + put).exp()
                matrix[longer, index] += choice * taken.exp()
    return _with_rejections(matrix)


def stationary_distribution(matrix: Tensor) -> Tensor:
    """(S,) the stationary distribution π P = π, Σ π = 1, by linear equations."""
    size = len(matrix)
    equations = matrix.double().t() - torch.eye(size, dtype=torch.float64)
    equations = torch.cat([equations, torch.ones(1, size, dtype=torch.float64)])
    right = torch.zeros(size + 1, dtype=torch.float64)
    right[-1] = 1.0
    return torch.linalg.lstsq(equations, right[:, None], driver="gelsd").solution[:, 0]


def total_variation(one: Tensor, other: Tensor) -> float:
    """½ Σ |p - q|: the greatest difference in the probability of any set of texts."""
    return float((one - other).abs().sum()) / 2


def kl_divergence(one: Tensor, other: Tensor) -> float:
    """KL(p ‖ q) = Σ p log(p / q), in nats."""
    kept = one > 0
    return float((one[kept] * (one[kept].log() - other[kept].log())).sum())


def gibbs_kl_divergence(system: Any, target: EnergyFunction, length: int) -> dict[str, float]:
    """KL of Gibbs' stationary distribution (random scan) from exp(-E) / Z over all texts."""
    with evaluation_mode(system):
        space = text_space(system, [length])
        energies = target.energies(space.batch)
        proposal = MaskedLMProposal(system)
        matrix = scan_transition_matrix(space, "random", 1, proposal, GibbsAcceptance(), energies)
        sweep = scan_transition_matrix(
            space, "sequential", 1, proposal, GibbsAcceptance(), energies
        )
    law, found, swept = (
        torch.softmax(-energies, 0),
        stationary_distribution(matrix),
        stationary_distribution(sweep),
    )
    return {
        "total_variation": total_variation(found, law),
        "divergence": kl_divergence(law, found),
        "between_orders": total_variation(found, swept),
    }


def _law_at(move: InsertDeleteMove, row: Sequence[int], place: int) -> Tensor:
    """(V,) log-probabilities at one position of a row."""
    tokens = torch.tensor([list(row)])
    lengths = torch.tensor([len(row)])
    masked = torch.zeros_like(tokens, dtype=torch.bool)
    masked[0, place] = True
    batch = Batch(tokens=tokens, lengths=lengths, rows=torch.zeros(1, dtype=torch.int64))
    return move.proposal.log_probs(batch, masked)[0].double()


def _together(law: Tensor, tokens: Sequence[Sequence[int]]) -> Tensor:
    """(S,) log-probability of the tokens (S, K) of each row under its distributions (S, K, V)."""
    return law.gather(-1, torch.tensor(tokens)[..., None]).squeeze(-1).sum(-1)


def _with(text: tuple[int, ...], places: Sequence[int], tokens: Sequence[int]) -> tuple[int, ...]:
    changed = list(text)
    for place, token in zip(places, tokens, strict=True):
        changed[place - 1] = token
    return tuple(changed)


def _with_rejections(matrix: Tensor) -> Tensor:
    """Add the rejection probability to the diagonal."""
    return matrix + torch.diag(1 - matrix.sum(1))
