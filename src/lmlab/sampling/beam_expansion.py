"""Beam expansion: the most probable continuations of every hypothesis, with constraints."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lmlab.inference.decoding import check_log_probs
from lmlab.sampling.lexical_constraints import LexicalConstraints, Phrase

TOP_K_BLOCK = 100
"""Block size of `top_values`."""


class Continuations(NamedTuple):
    """The continuations of a hypothesis."""

    end_log_prob: float
    """Log-probability that it ends here."""
    tokens: list[int]
    """The most probable other tokens, best first; no more than a beam can use."""
    log_probs: list[float]
    """-inf for impossible tokens, the end token among them."""


class PartialHypothesis(NamedTuple):
    """An open hypothesis, as far as constraints need it."""

    tokens: Phrase
    last: bool
    """Whether at most one more token is allowed."""


def top_continuations(log_probs: Tensor, width: int, end: int | None) -> list[Continuations]:
    """The `width` most probable tokens of every row (rows, V), and its end log-probability."""
    # One row can fill at most the whole beam, plus the end token, which takes no slot.
    values, tokens = top_values(log_probs, min(width + 1, log_probs.shape[1]))
    check_log_probs(values)  # NaN would count as the largest value.
    ended = [-math.inf] * len(log_probs)
    if end is not None:
        ended = log_probs[:, end].tolist()
        values = values.masked_fill(tokens == end, -math.inf)
    return [
        Continuations(*way) for way in zip(ended, tokens.tolist(), values.tolist(), strict=True)
    ]


def constrained_continuations(
    constraints: LexicalConstraints,
    rows: list[PartialHypothesis],
    log_probs: Tensor,
    width: int,
    end: int | None,
) -> list[Continuations]:
    """The continuations that satisfy the constraints, with the tokens they require added."""
    if constraints.banned:
        log_probs = log_probs.clone()
        for values, row in zip(log_probs, rows, strict=True):
            _forbid(constraints, row, values)
    found = top_continuations(log_probs, width, end)
    if not constraints.required:
        return found
    return [
        _with_wanted(way, values, constraints, row.tokens, end)
        for way, values, row in zip(found, log_probs, rows, strict=True)
    ]


def _forbid(constraints: LexicalConstraints, row: PartialHypothesis, log_probs: Tensor) -> None:
    """Set forbidden tokens to -inf in a row's log-probabilities (V,), in place."""
    if constraints.must_continue(row.tokens):
        log_probs.copy_(_only(log_probs, constraints, inside=True))
    log_probs[list(constraints.forbidden_tokens(row.tokens, last=row.last))] = -math.inf


def _only(log_probs: Tensor, constraints: LexicalConstraints, *, inside: bool) -> Tensor:
    """The log-probabilities (V,) of word-continuation tokens only, or of all others only."""
    going_on = torch.zeros_like(log_probs, dtype=torch.bool)
    going_on[list(constraints.boundaries.continuation_tokens)] = True
    return log_probs.masked_fill(going_on != inside, -math.inf)


def _with_wanted(
    way: Continuations,
    log_probs: Tensor,
    constraints: LexicalConstraints,
    written: Phrase,
    end: int | None,
) -> Continuations:
    """Add required tokens to the continuations; allow the end only if nothing is missing."""
    wanted = constraints.required_tokens(written)
    if constraints.needs_boundary(written):
        others = _only(log_probs, constraints, inside=False)
        if end is not None:
            others[end] = -math.inf
        wanted.add(int(others.argmax()))
    more = [token for token in sorted(wanted) if token not in way.tokens]
    values = [float(log_probs[token]) for token in more]
    ended = -math.inf if constraints.missing(written) else way.end_log_prob
    return Continuations(ended, way.tokens + more, way.log_probs + values)


def top_values(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(rows, count) top-k values of each row (rows, V), best first, and their indices.

    Blockwise: the largest values lie in the blocks with the largest maxima, so a long row is
    scanned only once for those; twice as fast as torch's topk.
    """
    rows, size = values.shape
    whole = size - size % TOP_K_BLOCK
    if whole < 2 * count * TOP_K_BLOCK:
        return values.topk(count, dim=-1)
    blocks = values[:, :whole].unflatten(1, (-1, TOP_K_BLOCK))
    best = blocks.amax(-1).topk(count, dim=-1).indices
    inside = torch.arange(TOP_K_BLOCK, device=values.device)
    places = (best[..., None] * TOP_K_BLOCK + inside).flatten(1)
    rest = torch.arange(whole, size, device=values.device).expand(rows, -1)
    places = torch.cat([places, rest], 1)
    found, chosen = values.gather(1, places).topk(count, dim=-1)
    return found, places.gather(1, chosen)
