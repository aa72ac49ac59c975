"""Options of building an index; importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from lmlab.core.options import Option

IndexKind = Literal["flat", "ivf", "hnsw"]
DEFAULT_RECALL = 0.95
IndexProgress = Callable[[str, int, int], None]
"""Called with a stage, the steps done and their number."""


def ignore_progress(stage: str, done: int, of: int) -> None:
    """No progress is shown."""


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """How documents are encoded and indexed."""

    kind: Annotated[
        IndexKind, Option("Index: flat searches every vector; ivf and hnsw some, faster.")
    ] = "flat"
    recall: Annotated[float, Option("Target recall of ivf and hnsw.")] = DEFAULT_RECALL
    batch: Annotated[int, Option("Batch size of the encoder.")] = 64
    seed: Annotated[int, Option("Random seed of ivf and hnsw.")] = 0
    progress: IndexProgress = ignore_progress
