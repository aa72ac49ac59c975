"""Transition matrices of MCMC kernels on enumerable spaces, and their stationary distributions.

A deterministic reference for samplers: every outcome of every step is enumerated with the
probabilities that the proposal and the kernel use.
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
"""Maximum number of states S; a transition matrix has S² entries."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TextSpace:
    """State space: all S texts of the given lengths."""

    tokens: tuple[int, ...]
    """Tokens allowed at a position."""
    texts: tuple[tuple[int, ...], ...]
    batch: Batch
    """<s> x </s>, one text per row."""

    def index(self, text: Sequence[int]) -> int:
        return self.texts.index(tuple(text))

    @property
    def state(self) -> ChainState:
        """One chain per text, in that text."""
        return ChainState(batch=self.batch)


def text_space(system: Any, lengths: Sequence[int]) -> TextSpace:
    """All texts of these lengths over all allowed tokens."""
    vocabulary = system.vocabulary
    tokens = tuple(allowed_tokens(vocabulary, vocabulary.size).nonzero()[:, 0].tolist())
    count = sum(len(tokens) ** length for length in lengths)
    if count > MAX_TEXTS:
        raise UserError(f"at most {MAX_TEXTS} texts can be enumerated, got {count}.")
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
    positions: Sequence[int],
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
    masked[:, list(positions)] = True
    log_probs = proposal.log_probs(space.batch, masked).double()
    log_probs = apply_temperature(log_probs, temperature * proposal_temperature)
    log_probs = log_probs.view(len(space.texts), len(positions), -1)
    index_of = {text: index for index, text in enumerate(space.texts)}
    matrix = log_probs.new_zeros(len(space.texts), len(space.texts))
    row = torch.arange(len(space.texts))
    backward = _joint_log_probs(
        log_probs, [[text[p - 1] for p in positions] for text in space.texts]
    )
    for proposed in itertools.product(space.tokens, repeat=len(positions)):
        next_index = torch.tensor(
            [index_of[_replace_tokens(text, positions, proposed)] for text in space.texts]
        )
        forward = _joint_log_probs(log_probs, [proposed] * len(space.texts))
        log_acceptance = kernel.log_acceptance(
            energies, energies[next_index], forward, backward, temperature
        )
        matrix[row, next_index] += (forward + log_acceptance).exp()
    return _add_rejections(matrix)


def scan_transition_matrix(
    space: TextSpace,
    order: str,
    masks: int,
    proposal: ProposalDistribution,
    kernel: AcceptanceRule,
    energies: Tensor,
    **temperatures: float,
) -> Tensor:
    """(S, S) of one random-scan step, or of a systematic sweep from left to right."""
    length = len(space.texts[0])
    positions = range(1, length + 1)
    if order == "random":
        groups = list(itertools.combinations(positions, masks))
    else:
        groups = [tuple(positions[first : first + masks]) for first in range(0, length, masks)]
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
    index_of = {text: index for index, text in enumerate(space.texts)}
    matrix = energies.new_zeros(len(index_of), len(index_of))
    start, end = int(space.batch.tokens[0, 0]), int(space.batch.tokens[0, len(space.texts[0]) + 1])
    for index, text in enumerate(space.texts):
        for gap in range(len(text) + 1):
            if len(text) == move.max_length:
                break
            log_probs = _log_probs_at(move, (start, *text[:gap], start, *text[gap:], end), gap + 1)
            log_probs = apply_temperature(log_probs, temperature)
            for token in space.tokens:
                longer = index_of[(*text[:gap], token, *text[gap:])]
                zero = torch.zeros((), dtype=log_probs.dtype)
                log_accept_insertion = kernel.log_acceptance(
                    energies[index], energies[longer], log_probs[token], zero, temperature
                )
                log_accept_deletion = kernel.log_acceptance(
                    energies[longer], energies[index], zero, log_probs[token], temperature
                )
                move_probability = 0.5 / (len(text) + 1)
                matrix[index, longer] += (
                    move_probability * (log_probs[token] + log_accept_insertion).exp()
                )
                matrix[longer, index] += move_probability * log_accept_deletion.exp()
    return _add_rejections(matrix)


def stationary_distribution(matrix: Tensor) -> Tensor:
    """(S,) the stationary distribution π P = π, Σ π = 1, by linear equations."""
    size = len(matrix)
    equations = matrix.double().t() - torch.eye(size, dtype=torch.float64)
    equations = torch.cat([equations, torch.ones(1, size, dtype=torch.float64)])
    right = torch.zeros(size + 1, dtype=torch.float64)
    right[-1] = 1.0
    return torch.linalg.lstsq(equations, right[:, None], driver="gelsd").solution[:, 0]


def total_variation(p: Tensor, q: Tensor) -> float:
    """Total variation ½ Σ |p - q|: the maximum difference in probability of any set of texts."""
    return float((p - q).abs().sum()) / 2


def kl_divergence(p: Tensor, q: Tensor) -> float:
    """KL(p ‖ q) = Σ p log(p / q), in nats."""
    support = p > 0
    return float((p[support] * (p[support].log() - q[support].log())).sum())


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
    boltzmann, stationary, sweep_stationary = (
        torch.softmax(-energies, 0),
        stationary_distribution(matrix),
        stationary_distribution(sweep),
    )
    return {
        "total_variation": total_variation(stationary, boltzmann),
        "divergence": kl_divergence(boltzmann, stationary),
        "between_orders": total_variation(stationary, sweep_stationary),
    }


def _log_probs_at(move: InsertDeleteMove, row: Sequence[int], position: int) -> Tensor:
    """(V,) log-probabilities at one position of a row."""
    tokens = torch.tensor([list(row)])
    lengths = torch.tensor([len(row)])
    masked = torch.zeros_like(tokens, dtype=torch.bool)
    masked[0, position] = True
    batch = Batch(tokens=tokens, lengths=lengths, rows=torch.zeros(1, dtype=torch.int64))
    return move.proposal.log_probs(batch, masked)[0].double()


def _joint_log_probs(log_probs: Tensor, tokens: Sequence[Sequence[int]]) -> Tensor:
    """(S,) log-probability of the tokens (S, K) of each row under its distributions (S, K, V)."""
    return log_probs.gather(-1, torch.tensor(tokens)[..., None]).squeeze(-1).sum(-1)


def _replace_tokens(
    text: tuple[int, ...], positions: Sequence[int], tokens: Sequence[int]
) -> tuple[int, ...]:
    changed = list(text)
    for position, token in zip(positions, tokens, strict=True):
        changed[position - 1] = token
    return tuple(changed)


def _add_rejections(matrix: Tensor) -> Tensor:
    """Add the rejection probability to the diagonal."""
    return matrix + torch.diag(1 - matrix.sum(1))
