"""Beam expansion: the top-k continuations of every hypothesis, under lexical constraints."""

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
    end_log_probs = [-math.inf] * len(log_probs)
    if end is not None:
        end_log_probs = log_probs[:, end].tolist()
        values = values.masked_fill(tokens == end, -math.inf)
    return [
        Continuations(*row)
        for row in zip(end_log_probs, tokens.tolist(), values.tolist(), strict=True)
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
    continuations = top_continuations(log_probs, width, end)
    if not constraints.required:
        return continuations
    return [
        _add_required(row_continuations, values, constraints, row.tokens, end)
        for row_continuations, values, row in zip(continuations, log_probs, rows, strict=True)
    ]


def _forbid(constraints: LexicalConstraints, row: PartialHypothesis, log_probs: Tensor) -> None:
    """Set forbidden tokens to -inf in a row's log-probabilities (V,), in place."""
    if constraints.must_continue(row.tokens):
        log_probs.copy_(_restrict(log_probs, constraints, inside=True))
    log_probs[list(constraints.forbidden_tokens(row.tokens, last=row.last))] = -math.inf


def _restrict(log_probs: Tensor, constraints: LexicalConstraints, *, inside: bool) -> Tensor:
    """The log-probabilities (V,) of word-continuation tokens only, or of all others only."""
    continuation = torch.zeros_like(log_probs, dtype=torch.bool)
    continuation[list(constraints.boundaries.continuation_tokens)] = True
    return log_probs.masked_fill(continuation != inside, -math.inf)


def _add_required(
    continuations: Continuations,
    log_probs: Tensor,
    constraints: LexicalConstraints,
    prefix: Phrase,
    end: int | None,
) -> Continuations:
    """Add required tokens to the continuations; allow the end only if nothing is missing."""
    required = constraints.required_tokens(prefix)
    if constraints.needs_boundary(prefix):
        others = _restrict(log_probs, constraints, inside=False)
        if end is not None:
            others[end] = -math.inf
        required.add(int(others.argmax()))
    more = [token for token in sorted(required) if token not in continuations.tokens]
    values = [float(log_probs[token]) for token in more]
    ended = -math.inf if constraints.missing(prefix) else continuations.end_log_prob
    return Continuations(ended, continuations.tokens + more, continuations.log_probs + values)


def top_values(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(rows, count) top-k values of each row (rows, V), best first, and their indices.

    Blockwise: the largest values lie in the blocks with the largest maxima, so a long row is
    scanned only once for those; twice as fast as torch's topk.
    """
    rows, size = values.shape
    in_blocks = size - size % TOP_K_BLOCK
    if in_blocks < 2 * count * TOP_K_BLOCK:
        return values.topk(count, dim=-1)
    blocks = values[:, :in_blocks].unflatten(1, (-1, TOP_K_BLOCK))
    best = blocks.amax(-1).topk(count, dim=-1).indices
    offsets = torch.arange(TOP_K_BLOCK, device=values.device)
    indices = (best[..., None] * TOP_K_BLOCK + offsets).flatten(1)
    rest = torch.arange(in_blocks, size, device=values.device).expand(rows, -1)
    indices = torch.cat([indices, rest], 1)
    top, chosen = values.gather(1, indices).topk(count, dim=-1)
    return top, indices.gather(1, chosen)
