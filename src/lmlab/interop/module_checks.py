"""Is the module what it is said to be? A few passes over a handful of ids, before anything else."""

from __future__ import annotations

import torch
from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import (
    device_of,
    evaluation_mode,
)
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.wrapped import (
    ModuleBackbone,
    extract_logits,
)

PROBE_TOKENS = 8
"""Tokens in a probe, or as many as the module takes."""
PROBE_REPLACEMENTS = 3
"""Tokens that are tried in another's place."""
CAUSALITY_TOLERANCE, PADDING_TOLERANCE = 1e-4, 1e-5
"""By what share of the greatest score two readings may differ and count as the same: of rows that
are read together, where a wrong suspicion would cost a model; and of texts alone and in company,
where it costs only time."""


def check_module(
    reading: ModuleBackbone, vocabulary: Vocabulary, *, kind: str, longest: int | None
) -> int:
    """Check shapes, numbers and sight of a module; gives how many ids it has scores of.

    Sets `reading.supports_padding`: whether scores are the same with padding behind them, which is
    measured.
    """
    with evaluation_mode(reading):
        tokens = _some_tokens(reading, vocabulary, longest)
        size = _check_scores(reading, tokens)
        _check_sight(reading, tokens, vocabulary, kind)
        reading.supports_padding = _may_pad(reading, tokens)
    return size


def _some_tokens(reading: ModuleBackbone, vocabulary: Vocabulary, longest: int | None) -> Tensor:
    """(1, T) ordinary ids, drawn evenly from all."""
    symbols = {*vocabulary.unpredictable, vocabulary.end, vocabulary.unknown}
    able = [id for id in range(reading.width) if id not in symbols] or list(range(reading.width))
    generator = torch.Generator().manual_seed(0)
    places = PROBE_TOKENS if longest is None else min(PROBE_TOKENS, longest)
    drawn = torch.randint(len(able), (1, places), generator=generator)
    return torch.tensor(able)[drawn].to(device_of(reading))


def _first_answer(reading: ModuleBackbone, tokens: Tensor) -> tuple[Tensor, UserError | None]:
    """(1, T, V) scores for the ids; or where those fail by an index for ids of 0, and the failure.

    An embedding that is too small for the tokeniser fails so, and still tells its size.
    """
    shape, lengths, failure = tuple(tokens.shape), _lengths(tokens), None
    try:
        return extract_logits(reading.call(tokens, lengths), shape), None
    except UserError as error:
        if not isinstance(error.__cause__, IndexError):
            raise
        failure = error
    try:
        return extract_logits(reading.call(torch.zeros_like(tokens), lengths), shape), failure
    except UserError:
        raise failure from failure.__cause__


def _check_scores(reading: ModuleBackbone, tokens: Tensor) -> int:
    """How many ids there are scores of: at least those of the tokeniser, and numbers all."""
    found, failure = _first_answer(reading, tokens)
    size = found.shape[-1]
    if size < reading.width:
        raise UserError(
            f"the tokeniser has {reading.width} tokens, and the module gives scores of {size}; "
            "take the tokeniser that it was trained with."
        )
    if failure is not None:
        raise failure
    scores = found[..., : reading.width].float()
    if bool(scores.isnan().any() | (scores == torch.inf).any()) or not bool(
        scores.isfinite().any(-1).all()
    ):
        raise UserError(
            "the module gives scores that are not finite numbers; look at its weights, and at "
            "what it does in evaluation mode."
        )
    return size


def _check_sight(
    reading: ModuleBackbone, tokens: Tensor, vocabulary: Vocabulary, kind: str
) -> None:
    """A causal module must not look ahead, and a masked one should look both ways."""
    if tokens.shape[1] < 2:
        return
    ahead = _moves(reading, tokens, changed=tokens.shape[1] - 1)
    if kind == "causal" and bool(ahead[:-1].any()):
        place = int(ahead[:-1].nonzero()[0])
        raise UserError(
            f"the module is not causal: another token at place {tokens.shape[1]} changes the "
            f"scores at place {place + 1}, which must not see it; wrap it with kind='masked', or "
            "mend its attention."
        )
    if kind == "masked" and not bool(ahead[:-1].any()):
        back = _moves(reading, tokens, changed=0)
        if bool(back[1:].any()):
            raise UserError(
                "the module looks only at what stands before a place, and one that fills in masks "
                "looks both ways; wrap it with kind='causal'."
            )


def _moves(reading: ModuleBackbone, tokens: Tensor, *, changed: int) -> Tensor:
    """(T,) bool: the places whose scores change where another token stands at one place."""
    rows = tokens.repeat(1 + PROBE_REPLACEMENTS, 1)
    original = int(tokens[0, changed])
    step = max(1, reading.width // (PROBE_REPLACEMENTS + 1))
    for other in range(1, PROBE_REPLACEMENTS + 1):
        rows[other, changed] = (original + other * step) % reading.width
    scores = reading.read(rows, _lengths(rows))
    return _differences(scores[1:], scores[:1]).amax((0, 2)) > _allowed(scores, CAUSALITY_TOLERANCE)


def _may_pad(reading: ModuleBackbone, tokens: Tensor) -> bool:
    """Whether the scores of a short text are the same beside a long one."""
    short = (tokens.shape[1] + 1) // 2
    if short == tokens.shape[1]:
        return False
    alone = reading.read(tokens[:, :short], _lengths(tokens[:, :short]))
    lengths = torch.tensor([short, tokens.shape[1]], device=tokens.device)
    together = reading.read(tokens.repeat(2, 1), lengths)[:1, :short]
    return bool(_differences(alone, together).max() <= _allowed(alone, PADDING_TOLERANCE))


def _lengths(tokens: Tensor) -> Tensor:
    return torch.full((len(tokens),), tokens.shape[1], device=tokens.device)


def _differences(one: Tensor, other: Tensor) -> Tensor:
    """|one - other|, nothing where a token can't come."""
    return (one.float() - other.float()).abs().nan_to_num(nan=0.0)


def _allowed(scores: Tensor, share: float) -> float:
    """What may differ, never less than what numbers of so many bits can tell."""
    greatest = scores.float()[scores.isfinite()].abs().max()
    return max(share, 8 * torch.finfo(scores.dtype).eps) * float(greatest)
