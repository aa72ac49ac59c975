"""How the hypotheses of a search may go on: the likeliest next tokens of every row."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lmlab.sampling.decoding import check_numbers
from lmlab.sampling.lexical_constraints import (
    Constraints,
    Phrase,
)

BLOCK = 100
"""Numbers of a row that `largest` looks at together."""


class Ways(NamedTuple):
    """How a hypothesis may go on."""

    ended: float
    """Log-probability that it ends here."""
    tokens: list[int]
    """The likeliest others, best first; no more than a beam can use."""
    log_probs: list[float]
    """-inf at what can't come, the end symbol among it."""


class Row(NamedTuple):
    """An open hypothesis, as far as constraints need to know it."""

    written: Phrase
    last: bool
    """Whether one more token is all that it may have."""


def best_ways(log_probs: Tensor, width: int, end: int | None) -> list[Ways]:
    """The `width` likeliest tokens of every row (rows, V), and how likely it ends."""
    # Of `width` places a row can take all, and the end symbol takes none: so many are enough.
    values, tokens = largest(log_probs, min(width + 1, log_probs.shape[1]))
    check_numbers(values)  # What is no number counts as the largest.
    ended = [-math.inf] * len(log_probs)
    if end is not None:
        ended = log_probs[:, end].tolist()
        values = values.masked_fill(tokens == end, -math.inf)
    return [Ways(*way) for way in zip(ended, tokens.tolist(), values.tolist(), strict=True)]


def ways_that_keep(
    constraints: Constraints, rows: list[Row], log_probs: Tensor, width: int, end: int | None
) -> list[Ways]:
    """The same of what keeps to constraints, with the tokens beside it that they ask for."""
    if constraints.banned:
        log_probs = log_probs.clone()
        for values, row in zip(log_probs, rows, strict=True):
            _forbid(constraints, row, values)
    found = best_ways(log_probs, width, end)
    if not constraints.required:
        return found
    return [
        _with_wanted(way, values, constraints, row.written, end)
        for way, values, row in zip(found, log_probs, rows, strict=True)
    ]


def _forbid(constraints: Constraints, row: Row, log_probs: Tensor) -> None:
    """Take what is forbidden out of a row's log-probabilities (V,), in place."""
    if constraints.must_go_on(row.written):
        log_probs.copy_(_only(log_probs, constraints, inside=True))
    log_probs[list(constraints.forbidden(row.written, last=row.last))] = -math.inf


def _only(log_probs: Tensor, constraints: Constraints, *, inside: bool) -> Tensor:
    """The log-probabilities (V,) of tokens that go on with a word alone, or of all others alone."""
    going_on = torch.zeros_like(log_probs, dtype=torch.bool)
    going_on[list(constraints.borders.inside)] = True
    return log_probs.masked_fill(going_on != inside, -math.inf)


def _with_wanted(
    way: Ways, log_probs: Tensor, constraints: Constraints, written: Phrase, end: int | None
) -> Ways:
    """A way on that may also take what is wanted, and may end only where nothing is missing."""
    wanted = constraints.wanted(written)
    if constraints.wants_border(written):
        others = _only(log_probs, constraints, inside=False)
        if end is not None:
            others[end] = -math.inf
        wanted.add(int(others.argmax()))
    more = [token for token in sorted(wanted) if token not in way.tokens]
    values = [float(log_probs[token]) for token in more]
    ended = -math.inf if constraints.missing(written) else way.ended
    return Ways(ended, way.tokens + more, way.log_probs + values)


def largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(rows, count) the largest values of each row (rows, V), best first, and where they stand.

    The largest of all stand in the blocks whose own largest are the largest: a long row is passed
    over once for those, which is twice as fast as torch's topk.
    """
    rows, size = values.shape
    whole = size - size % BLOCK
    if whole < 2 * count * BLOCK:
        return values.topk(count, dim=-1)
    blocks = values[:, :whole].unflatten(1, (-1, BLOCK))
    best = blocks.amax(-1).topk(count, dim=-1).indices
    inside = torch.arange(BLOCK, device=values.device)
    places = (best[..., None] * BLOCK + inside).flatten(1)
    rest = torch.arange(whole, size, device=values.device).expand(rows, -1)
    places = torch.cat([places, rest], 1)
    found, chosen = values.gather(1, places).topk(count, dim=-1)
    return found, places.gather(1, chosen)
