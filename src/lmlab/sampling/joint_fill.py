"""Tokens for all gaps of a text together: by a system's own joint, or by the chain rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluating
from lmlab.core.joint_distribution import (
    NOT_PROVEN,
    Ranked,
    RankedJoint,
)
from lmlab.core.score_kind import Kind
from lmlab.data.collation import batch_of

Answers = tuple[tuple[int, ...], float]
"""A token for each gap, and their log-probability together."""
Ask = Callable[[Sequence[Sequence[int]], Sequence[int]], Tensor]
"""(rows, places, V) log-probabilities at places of rows, all of them hidden."""
PSEUDO = (
    "Their nats are no log-probability of the filling: each token's given the others, added up, "
    "since all fillings together are too many to sum."
)
AT_ONCE = "all gaps at once, by the system's own distribution of them"
GAP_BY_GAP = "gap by gap from left to right, each given the text and the gaps before it"
MOST_ROUNDS = 100
"""Of draws, for a system that draws hardly anything but symbols."""


@dataclass(frozen=True)
class Together:
    """Answers best first, or as they were drawn."""

    answers: list[Answers]
    kind: Kind
    """What their log-probabilities are."""
    order: str
    """In which order the gaps were asked."""
    note: str | None = None


def without_symbols(log_probs: Tensor, symbols: frozenset[int]) -> Tensor:
    """(…, V) with nothing for symbols, which no text has; the others are as they were."""
    ids = [id for id in symbols if id < log_probs.shape[-1]]
    return log_probs.index_fill(-1, torch.tensor(ids, dtype=torch.long), -math.inf)


def ranked_without(
    ranked: Callable[..., Together], symbols: frozenset[int], count: int
) -> Together:
    """The best `count` that have no symbol: more are asked for until there are enough."""
    asked = count
    while True:
        found = ranked(count=asked)
        kept = [each for each in found.answers if symbols.isdisjoint(each[0])]
        if len(kept) >= count or len(found.answers) < asked:
            return replace(found, answers=kept[:count])
        asked *= 2


def drawn_without(drawn: Callable[..., Together], symbols: frozenset[int], count: int) -> Together:
    """`count` draws that have no symbol: p(a) / Σ_b p(b), b over all fillings without one."""
    kept: list[Answers] = []
    for _ in range(MOST_ROUNDS):
        found = drawn(count=count)
        kept += [each for each in found.answers if symbols.isdisjoint(each[0])]
        if len(kept) >= count:
            break
    return replace(found, answers=kept[:count])


def by_joint(
    system: Any,
    row: Sequence[int],
    places: Sequence[int],
    *,
    count: int,
    generator: torch.Generator | None = None,
) -> Together:
    """By the system's own distribution of all gaps: its likeliest, or draws."""
    batch = batch_of([row] * (1 if generator is None else count), system)
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[:, list(places)] = True
    with evaluating(system):
        joint = system.joint_fill(batch, masked)
        if generator is None and isinstance(joint, RankedJoint):
            ranked = joint.ranked(0, count)
            answers = [(each.tokens, each.log_prob) for each in ranked]
            pseudo = any(each.kind == "pseudo" for each in ranked)
            return Together(answers, "pseudo" if pseudo else "exact", AT_ONCE, _doubts(ranked))
        tokens = joint.best() if generator is None else joint.sample(generator=generator)
        log_probs = joint.log_prob(tokens).tolist()
    if any(math.isnan(value) for value in log_probs):
        raise UserError(
            "this model gives probabilities that are not numbers: its training has gone "
            "wrong, so train it again with a lower learning rate."
        )
    each = tokens.view(len(batch), len(places)).tolist()
    answers = [(tuple(ids), value) for ids, value in zip(each, log_probs, strict=True)]
    return Together(answers, "exact", AT_ONCE)


def _doubts(ranked: Sequence[Ranked]) -> str | None:
    """What a ranking does not promise."""
    notes = [] if all(each.proven for each in ranked) else [NOT_PROVEN]
    if any(each.kind == "pseudo" for each in ranked):
        notes.append(PSEUDO)
    return " ".join(notes) or None


def chain_kind(system: Any, gaps: int) -> Kind:
    """What the chain rule over so many gaps gives; one alone has nothing to agree with."""
    kind: Kind = getattr(system, "filling_kind", "pseudo")
    return "exact" if gaps == 1 else kind


def by_chain_rule(
    ask: Ask,
    row: Sequence[int],
    places: Sequence[int],
    *,
    kind: Kind,
    symbols: frozenset[int],
    beam: int,
    count: int,
) -> Together:
    """log p(a) = Σ_i log p(a_i | text, a_<i) by beam search from left to right, a pass a gap.

    No a_i is one of the symbols.
    """
    found: list[Answers] = [((), 0.0)]
    for number in range(len(places)):
        rows = [_with(row, places, answers) for answers, _ in found]
        log_probs = without_symbols(ask(rows, places[number:])[:, 0], symbols)
        found = _extended(found, log_probs, max(beam, count))
    return Together(found[:count], kind, GAP_BY_GAP)


def drawn_by_chain_rule(
    ask: Ask,
    row: Sequence[int],
    places: Sequence[int],
    *,
    kind: Kind,
    count: int,
    generator: torch.Generator,
) -> Together:
    """`count` draws by the same conditionals, gap by gap."""
    found: list[Answers] = [((), 0.0)] * count
    for number in range(len(places)):
        rows = [_with(row, places, answers) for answers, _ in found]
        log_probs = ask(rows, places[number:])[:, 0]
        drawn = torch.multinomial(log_probs.exp(), 1, generator=generator)[:, 0].tolist()
        found = [
            ((*answers, token), total + float(log_probs[index, token]))
            for index, ((answers, total), token) in enumerate(zip(found, drawn, strict=True))
        ]
    return Together(found, kind, GAP_BY_GAP)


def _with(row: Sequence[int], places: Sequence[int], answers: Sequence[int]) -> list[int]:
    """The row with answers at the first of the places."""
    filled = list(row)
    for place, answer in zip(places, answers, strict=False):
        filled[place] = answer
    return filled


def _extended(found: Sequence[Answers], log_probs: Tensor, most: int) -> list[Answers]:
    """The best ways to go on from some answers, given (answers, V) for the next gap."""
    totals = torch.tensor([total for _, total in found], dtype=torch.float64)[:, None] + log_probs
    values, places = totals.flatten().topk(min(most, totals.numel()))
    size = totals.shape[1]
    return [
        ((*found[place // size][0], place % size), value)
        for place, value in zip(places.tolist(), values.tolist(), strict=True)
        if value > -math.inf
    ]
