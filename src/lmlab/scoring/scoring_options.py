"""Options of scoring texts (`Scorer`); importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from lmlab.core.options import Option
from lmlab.core.shared_options import parse_positions

if TYPE_CHECKING:
    from lmlab.scoring.scoring_methods import ScoringMethod

ScoringMethodName = Literal[
    "simple",
    "raw",
    "norm",
    "pll",
    "within-word",
    "pll-within-word",
    "k-mask",
    "raw-k-mask",
    "exact",
    "bound",
    "energy",
]


def _parse_positions(text: str) -> tuple[int, ...]:
    return parse_positions(text) if text.strip() else ()


@dataclass(frozen=True, kw_only=True)
class ScoringOptions:
    """How texts are scored: by which method, in which windows."""

    method: Annotated[
        ScoringMethodName | ScoringMethod | None,
        Option(
            "Score: by masking (simple to raw-k-mask) for masked models; exact, bound or energy "
            "for systems that have it.",
            metavar="METHOD",
            show_default="the system's own",
        ),
    ] = None
    positions: Annotated[
        Sequence[int],
        Option(
            "Tokens that k-mask masks together, counted from 1.",
            metavar="1,3-5",
            parse=_parse_positions,
        ),
    ] = ()
    head: Annotated[
        Literal["own", "none"],
        Option("LM head of a masked model; none takes hidden states times token embeddings."),
    ] = "own"
    mean: Annotated[bool, Option("Mean over all tokens instead of the sum of scored ones.")] = False
    window: Annotated[
        int | None,
        Option(
            "Context window in tokens, scored with a sliding window.", show_default="the model's"
        ),
    ] = None
    stride: Annotated[
        int | None,
        Option(
            "Tokens newly scored per window: its last ones from left to right, those in its "
            "middle for masked models.",
            show_default="half of the window",
        ),
    ] = None
    tokens_per_batch: int | None = None
    cut: int | None = None
    """Maximum length of a text in tokens; None truncates nothing."""
    carry: bool = True
    """Whether the texts of a contiguous layout are one stream, the state carried on."""
    seed: int = 0
    """Of systems with estimated scores."""
    progress: Callable[[int], None] | None = None
    """Called after each batch with the number of tokens scored."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingOptions:
    """Which vectors of a text are its embedding."""

    per_token: Annotated[bool, Option("One vector per token instead of one per text.")] = False
    layer: Annotated[
        int | None,
        Option(
            "Hidden states of this layer: 0 is the embeddings, -1 the last.",
            show_default="the system's own vectors",
        ),
    ] = None
    pooling: Annotated[
        Literal["own", "mean", "max", "last", "first"] | None,
        Option(
            "Pooling of token vectors into a text vector; own is the system's definition.",
            show_default="own, else mean",
        ),
    ] = None
    tokens_per_batch: int | None = None
    progress: Callable[[int], None] | None = None
    """Called after each batch with the number of tokens encoded."""
