"""Joint mask filling: tokens for all masks of a text, by a joint distribution or the chain rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.joint_distribution import (
    SEARCH_NOT_PROVEN,
    RankableJointDistribution,
    RankedFilling,
)
from lmlab.core.score import ScoreKind
from lmlab.core.system_protocols import JointFillSystem, SystemInfo
from lmlab.data.batches import pad_rows

FillTokens = tuple[tuple[int, ...], float]
"""One token per mask, and their joint log-probability."""
MaskedQuery = Callable[[Sequence[Sequence[int]], Sequence[int]], Tensor]
"""(rows, positions, V) log-probabilities at positions of rows, all of them masked."""
PSEUDO_LIKELIHOOD_NOTE = (
    "Their nats are no log-probability of the filling but a pseudo-log-likelihood: the sum "
    "over tokens given the others, since there are too many fillings to normalise over."
)
JOINT_ORDER = "all gaps at once, by the system's own distribution of them"
CHAIN_RULE_ORDER = "gap by gap from left to right, each given the text and the gaps before it"
MAX_ROUNDS = 100
"""Maximum rounds of rejection sampling, for systems that sample mostly special tokens."""


@dataclass(frozen=True)
class JointFillResult:
    """Joint fillings, best first or in sampling order."""

    answers: list[FillTokens]
    kind: ScoreKind
    """Kind of their log-probabilities."""
    order: str
    """Factorisation order of the masks."""
    note: str | None = None


def without_special_tokens(log_probs: Tensor, special_tokens: frozenset[int]) -> Tensor:
    """(…, V) with -inf for special tokens; the others are not renormalised."""
    ids = [id for id in special_tokens if id < log_probs.shape[-1]]
    return log_probs.index_fill(-1, torch.tensor(ids, dtype=torch.long), -math.inf)


def top_without_special_tokens(
    ranked: Callable[..., JointFillResult], special_tokens: frozenset[int], count: int
) -> JointFillResult:
    """The best `count` fillings without special tokens: request more until there are enough."""
    requested = count
    while True:
        result = ranked(count=requested)
        kept = [answer for answer in result.answers if special_tokens.isdisjoint(answer[0])]
        if len(kept) >= count or len(result.answers) < requested:
            return replace(result, answers=kept[:count])
        requested *= 2


def samples_without_special_tokens(
    sample: Callable[..., JointFillResult], special_tokens: frozenset[int], count: int
) -> JointFillResult:
    """Rejection sampling of `count` fillings without special tokens: p(a) / Σ_b p(b) over those."""
    kept: list[FillTokens] = []
    for _ in range(MAX_ROUNDS):
        result = sample(count=count)
        kept += [answer for answer in result.answers if special_tokens.isdisjoint(answer[0])]
        if len(kept) >= count:
            break
    return replace(result, answers=kept[:count])


def fill_by_joint_distribution(
    system: JointFillSystem,
    row: Sequence[int],
    positions: Sequence[int],
    *,
    count: int,
    generator: torch.Generator | None = None,
) -> JointFillResult:
    """Fill by the system's own joint distribution: its most probable fillings, or samples."""
    batch = pad_rows([row] * (1 if generator is None else count), system)
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[:, list(positions)] = True
    with evaluation_mode(system):
        joint = system.joint_fill(batch, masked)
        if generator is None and isinstance(joint, RankableJointDistribution):
            ranked = joint.ranked(0, count)
            answers = [(token_rows.tokens, token_rows.log_prob) for token_rows in ranked]
            pseudo = any(token_rows.kind == "pseudo" for token_rows in ranked)
            return JointFillResult(
                answers, "pseudo" if pseudo else "exact", JOINT_ORDER, _ranking_caveats(ranked)
            )
        tokens = joint.best() if generator is None else joint.sample(generator=generator)
        log_probs = joint.log_prob(tokens).tolist()
    if any(math.isnan(value) for value in log_probs):
        raise UserError(
            "this model gives probabilities that are NaN: its training diverged; train it "
            "again with a lower learning rate."
        )
    token_rows = tokens.view(len(batch), len(positions)).tolist()
    answers = [(tuple(ids), value) for ids, value in zip(token_rows, log_probs, strict=True)]
    return JointFillResult(answers, "exact", JOINT_ORDER)


def _ranking_caveats(ranked: Sequence[RankedFilling]) -> str | None:
    """Caveats of a ranking that is not exact."""
    notes = [] if all(filling.proven for filling in ranked) else [SEARCH_NOT_PROVEN]
    if any(filling.kind == "pseudo" for filling in ranked):
        notes.append(PSEUDO_LIKELIHOOD_NOTE)
    return " ".join(notes) or None


def chain_rule_kind(system: SystemInfo, gaps: int) -> ScoreKind:
    """Score kind of the chain rule over `gaps` masks; a single mask is always consistent."""
    return "exact" if gaps == 1 else system.fill_score_kind


def fill_by_chain_rule(
    query: MaskedQuery,
    row: Sequence[int],
    positions: Sequence[int],
    *,
    kind: ScoreKind,
    special_tokens: frozenset[int],
    beam: int,
    count: int,
) -> JointFillResult:
    """Chain rule by beam search: log p(a) = Σ_i log p(a_i | text, a_<i), one pass per mask.

    From left to right; no a_i is a special token.
    """
    fillings: list[FillTokens] = [((), 0.0)]
    for number in range(len(positions)):
        rows = [_fill_positions(row, positions, answers) for answers, _ in fillings]
        log_probs = without_special_tokens(query(rows, positions[number:])[:, 0], special_tokens)
        fillings = _extend(fillings, log_probs, max(beam, count))
    return JointFillResult(fillings[:count], kind, CHAIN_RULE_ORDER)


def sample_by_chain_rule(
    query: MaskedQuery,
    row: Sequence[int],
    positions: Sequence[int],
    *,
    kind: ScoreKind,
    count: int,
    generator: torch.Generator,
) -> JointFillResult:
    """`count` ancestral samples by the same conditionals, mask by mask."""
    fillings: list[FillTokens] = [((), 0.0)] * count
    for number in range(len(positions)):
        rows = [_fill_positions(row, positions, answers) for answers, _ in fillings]
        log_probs = query(rows, positions[number:])[:, 0]
        sampled = torch.multinomial(log_probs.exp(), 1, generator=generator)[:, 0].tolist()
        fillings = [
            ((*answers, token), total + float(log_probs[index, token]))
            for index, ((answers, total), token) in enumerate(zip(fillings, sampled, strict=True))
        ]
    return JointFillResult(fillings, kind, CHAIN_RULE_ORDER)


def _fill_positions(
    row: Sequence[int], positions: Sequence[int], answers: Sequence[int]
) -> list[int]:
    """The row with answers at the first positions."""
    filled = list(row)
    for position, answer in zip(positions, answers, strict=False):
        filled[position] = answer
    return filled


def _extend(fillings: Sequence[FillTokens], log_probs: Tensor, count: int) -> list[FillTokens]:
    """The best extensions of partial fillings, given (fillings, V) for the next mask."""
    totals = (
        torch.tensor([total for _, total in fillings], dtype=torch.float64)[:, None] + log_probs
    )
    values, indices = totals.flatten().topk(min(count, totals.numel()))
    size = totals.shape[1]
    return [
        ((*fillings[index // size][0], index % size), value)
        for index, value in zip(indices.tolist(), values.tolist(), strict=True)
        if value > -math.inf
    ]
