"""Sanity checks of a wrapped module: output shape, finite scores, causality, padding invariance."""

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
"""Maximum number of tokens in a probe."""
PROBE_REPLACEMENTS = 3
"""Number of replacement tokens tried."""
CAUSALITY_TOLERANCE, PADDING_TOLERANCE = 1e-4, 1e-5
"""Relative tolerance (to the largest score) for equal scores: between rows of one batch, where a
false alarm rejects a model; and with and without padding, where it costs only time.
"""


def check_module(
    reading: ModuleBackbone, vocabulary: Vocabulary, *, kind: str, longest: int | None
) -> int:
    """Check shapes, finiteness and causality of a module; returns its number of output ids.

    Sets `reading.supports_padding`, measured: whether right padding leaves scores unchanged.
    """
    with evaluation_mode(reading):
        tokens = _some_tokens(reading, vocabulary, longest)
        size = _check_scores(reading, tokens)
        _check_sight(reading, tokens, vocabulary, kind)
        reading.supports_padding = _may_pad(reading, tokens)
    return size


def _some_tokens(reading: ModuleBackbone, vocabulary: Vocabulary, longest: int | None) -> Tensor:
    """(1, T) ordinary ids, sampled uniformly."""
    symbols = {*vocabulary.unpredictable, vocabulary.end, vocabulary.unknown}
    able = [id for id in range(reading.width) if id not in symbols] or list(range(reading.width))
    generator = torch.Generator().manual_seed(0)
    places = PROBE_TOKENS if longest is None else min(PROBE_TOKENS, longest)
    drawn = torch.randint(len(able), (1, places), generator=generator)
    return torch.tensor(able)[drawn].to(device_of(reading))


def _first_answer(reading: ModuleBackbone, tokens: Tensor) -> tuple[Tensor, UserError | None]:
    """(1, T, V) logits of the ids; after an IndexError those of ids 0, with the error.

    An embedding too small for the tokeniser fails this way, but its size is still known.
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
    """Number of output ids; must cover the tokeniser, with finite scores."""
    found, failure = _first_answer(reading, tokens)
    size = found.shape[-1]
    if size < reading.width:
        raise UserError(
            f"the tokeniser has {reading.width} tokens, but the module outputs scores for {size}; "
            "use the tokeniser that it was trained with."
        )
    if failure is not None:
        raise failure
    scores = found[..., : reading.width].float()
    if bool(scores.isnan().any() | (scores == torch.inf).any()) or not bool(
        scores.isfinite().any(-1).all()
    ):
        raise UserError(
            "the module outputs scores that are not finite; check its weights and its "
            "evaluation mode."
        )
    return size


def _check_sight(
    reading: ModuleBackbone, tokens: Tensor, vocabulary: Vocabulary, kind: str
) -> None:
    """Attention check: a causal module must not see the future, a masked one sees both sides."""
    if tokens.shape[1] < 2:
        return
    ahead = _moves(reading, tokens, changed=tokens.shape[1] - 1)
    if kind == "causal" and bool(ahead[:-1].any()):
        place = int(ahead[:-1].nonzero()[0])
        raise UserError(
            f"the module is not causal: changing the token at position {tokens.shape[1]} changes "
            f"the scores at position {place + 1}, which must not attend to it; wrap it with "
            "kind='masked', or fix its attention mask."
        )
    if kind == "masked" and not bool(ahead[:-1].any()):
        back = _moves(reading, tokens, changed=0)
        if bool(back[1:].any()):
            raise UserError(
                "the module attends to the left only, but a masked model must attend to both "
                "sides; wrap it with kind='causal'."
            )


def _moves(reading: ModuleBackbone, tokens: Tensor, *, changed: int) -> Tensor:
    """(T,) bool: positions whose scores change when the token at one position is replaced."""
    rows = tokens.repeat(1 + PROBE_REPLACEMENTS, 1)
    original = int(tokens[0, changed])
    step = max(1, reading.width // (PROBE_REPLACEMENTS + 1))
    for other in range(1, PROBE_REPLACEMENTS + 1):
        rows[other, changed] = (original + other * step) % reading.width
    scores = reading.read(rows, _lengths(rows))
    return _differences(scores[1:], scores[:1]).amax((0, 2)) > _allowed(scores, CAUSALITY_TOLERANCE)


def _may_pad(reading: ModuleBackbone, tokens: Tensor) -> bool:
    """Whether the scores of a short text are unchanged when it is batched with a long one."""
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
    """|one - other|, 0 where both are infinite (impossible tokens)."""
    return (one.float() - other.float()).abs().nan_to_num(nan=0.0)


def _allowed(scores: Tensor, share: float) -> float:
    """Absolute tolerance, at least the rounding error of the dtype."""
    greatest = scores.float()[scores.isfinite()].abs().max()
    return max(share, 8 * torch.finfo(scores.dtype).eps) * float(greatest)
