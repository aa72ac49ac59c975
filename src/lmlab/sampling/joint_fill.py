"""Tokens for all gaps of a text together: by a system's own joint, or by the chain rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.joint_distribution import (
    SEARCH_NOT_PROVEN,
    RankableJointDistribution,
    RankedFilling,
)
from lmlab.core.score_kind import ScoreKind
from lmlab.data.collation import pad_rows

FillTokens = tuple[tuple[int, ...], float]
"""A token for each gap, and their log-probability together."""
MaskedQuery = Callable[[Sequence[Sequence[int]], Sequence[int]], Tensor]
"""(rows, places, V) log-probabilities at places of rows, all of them hidden."""
PSEUDO_LIKELIHOOD_NOTE = (
    "Their nats are no log-probability of the filling: each token's given the others, added up, "
    "since all fillings together are too many to sum."
)
JOINT_ORDER = "all gaps at once, by the system's own distribution of them"
CHAIN_RULE_ORDER = "gap by gap from left to right, each given the text and the gaps before it"
MAX_ROUNDS = 100
"""Of draws, for a system that draws hardly anything but symbols."""


@dataclass(frozen=True)
class JointFillResult:
    """Answers best first, or as they were drawn."""

    answers: list[FillTokens]
    kind: ScoreKind
    """What their log-probabilities are."""
    order: str
    """In which order the gaps were asked."""
    note: str | None = None


def without_special_tokens(log_probs: Tensor, symbols: frozenset[int]) -> Tensor:
    """(…, V) with nothing for symbols, which no text has; the others are as they were."""
    ids = [id for id in symbols if id < log_probs.shape[-1]]
    return log_probs.index_fill(-1, torch.tensor(ids, dtype=torch.long), -math.inf)


def top_without_special_tokens(
    ranked: Callable[..., JointFillResult], symbols: frozenset[int], count: int
) -> JointFillResult:
    """The best `count` that have no symbol: more are asked for until there are enough."""
    asked = count
    while True:
        found = ranked(count=asked)
        kept = [each for each in found.answers if symbols.isdisjoint(each[0])]
        if len(kept) >= count or len(found.answers) < asked:
            return replace(found, answers=kept[:count])
        asked *= 2


def samples_without_special_tokens(
    drawn: Callable[..., JointFillResult], symbols: frozenset[int], count: int
) -> JointFillResult:
    """`count` draws that have no symbol: p(a) / Σ_b p(b), b over all fillings without one."""
    kept: list[FillTokens] = []
    for _ in range(MAX_ROUNDS):
        found = drawn(count=count)
        kept += [each for each in found.answers if symbols.isdisjoint(each[0])]
        if len(kept) >= count:
            break
    return replace(found, answers=kept[:count])


def fill_by_joint_distribution(
    system: Any,
    row: Sequence[int],
    places: Sequence[int],
    *,
    count: int,
    generator: torch.Generator | None = None,
) -> JointFillResult:
    """By the system's own distribution of all gaps: its likeliest, or draws."""
    batch = pad_rows([row] * (1 if generator is None else count), system)
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[:, list(places)] = True
    with evaluation_mode(system):
        joint = system.joint_fill(batch, masked)
        if generator is None and isinstance(joint, RankableJointDistribution):
            ranked = joint.ranked(0, count)
            answers = [(each.tokens, each.log_prob) for each in ranked]
            pseudo = any(each.kind == "pseudo" for each in ranked)
            return JointFillResult(
                answers, "pseudo" if pseudo else "exact", JOINT_ORDER, _doubts(ranked)
            )
        tokens = joint.best() if generator is None else joint.sample(generator=generator)
        log_probs = joint.log_prob(tokens).tolist()
    if any(math.isnan(value) for value in log_probs):
        raise UserError(
            "this model gives probabilities that are not numbers: its training has gone "
            "wrong, so train it again with a lower learning rate."
        )
    each = tokens.view(len(batch), len(places)).tolist()
    answers = [(tuple(ids), value) for ids, value in zip(each, log_probs, strict=True)]
    return JointFillResult(answers, "exact", JOINT_ORDER)


def _doubts(ranked: Sequence[RankedFilling]) -> str | None:
    """What a ranking does not promise."""
    notes = [] if all(each.proven for each in ranked) else [SEARCH_NOT_PROVEN]
    if any(each.kind == "pseudo" for each in ranked):
        notes.append(PSEUDO_LIKELIHOOD_NOTE)
    return " ".join(notes) or None


def chain_rule_kind(system: Any, gaps: int) -> ScoreKind:
    """What the chain rule over so many gaps gives; one alone has nothing to agree with."""
    kind: ScoreKind = getattr(system, "fill_score_kind", "pseudo")
    return "exact" if gaps == 1 else kind


def fill_by_chain_rule(
    ask: MaskedQuery,
    row: Sequence[int],
    places: Sequence[int],
    *,
    kind: ScoreKind,
    symbols: frozenset[int],
    beam: int,
    count: int,
) -> JointFillResult:
    """log p(a) = Σ_i log p(a_i | text, a_<i) by beam search from left to right, a pass a gap.

    No a_i is one of the symbols.
    """
    found: list[FillTokens] = [((), 0.0)]
    for number in range(len(places)):
        rows = [_with(row, places, answers) for answers, _ in found]
        log_probs = without_special_tokens(ask(rows, places[number:])[:, 0], symbols)
        found = _extended(found, log_probs, max(beam, count))
    return JointFillResult(found[:count], kind, CHAIN_RULE_ORDER)


def sample_by_chain_rule(
    ask: MaskedQuery,
    row: Sequence[int],
    places: Sequence[int],
    *,
    kind: ScoreKind,
    count: int,
    generator: torch.Generator,
) -> JointFillResult:
    """`count` draws by the same conditionals, gap by gap."""
    found: list[FillTokens] = [((), 0.0)] * count
    for number in range(len(places)):
        rows = [_with(row, places, answers) for answers, _ in found]
        log_probs = ask(rows, places[number:])[:, 0]
        drawn = torch.multinomial(log_probs.exp(), 1, generator=generator)[:, 0].tolist()
        found = [
            ((*answers, token), total + float(log_probs[index, token]))
            for index, ((answers, total), token) in enumerate(zip(found, drawn, strict=True))
        ]
    return JointFillResult(found, kind, CHAIN_RULE_ORDER)


def _with(row: Sequence[int], places: Sequence[int], answers: Sequence[int]) -> list[int]:
    """The row with answers at the first of the places."""
    filled = list(row)
    for place, answer in zip(places, answers, strict=False):
        filled[place] = answer
    return filled


def _extended(found: Sequence[FillTokens], log_probs: Tensor, most: int) -> list[FillTokens]:
    """The best ways to go on from some answers, given (answers, V) for the next gap."""
    totals = torch.tensor([total for _, total in found], dtype=torch.float64)[:, None] + log_probs
    values, places = totals.flatten().topk(min(most, totals.numel()))
    size = totals.shape[1]
    return [
        ((*found[place // size][0], place % size), value)
        for place, value in zip(places.tolist(), values.tolist(), strict=True)
        if value > -math.inf
    ]
