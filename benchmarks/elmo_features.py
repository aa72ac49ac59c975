"""Feature extractors of benchmarks/elmo.py: mean word vectors, and standardised features."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.system import System
from lmlab.tasks.task import EncodedExample, collate_examples

BATCH_SIZE = 64


class WordVectors(System):
    """Bag of words: a text as the mean of its word vectors."""

    def __init__(self, base: System, vectors: Tensor) -> None:
        super().__init__()
        self.vocabulary = base.vocabulary
        self.register_buffer("table", vectors.detach().clone())

    def encode_tokens(self, batch: Batch) -> Tensor:
        vectors: Tensor = F.embedding(batch.tokens, self.get_buffer("table"))
        return vectors

    def encode(self, batch: Batch) -> Tensor:
        real = batch.mask()[..., None]
        return (self.encode_tokens(batch) * real).sum(1) / batch.lengths[:, None]


class Standardised(System):
    """A system's features, standardised by mean and standard deviation over some texts.

    Makes a head's initialisation suit features of any scale.
    """

    def __init__(self, base: Any, texts: list[EncodedExample]) -> None:
        super().__init__()
        self.base, self.vocabulary = base, base.vocabulary
        with torch.no_grad():
            features = torch.cat(
                [
                    base.eval().encode(collate_examples(batch, self.vocabulary.pad))
                    for batch in in_batches(texts)
                ]
            )
        self.register_buffer("mean", features.mean(0))
        self.register_buffer("std", features.std(0).clamp(min=1e-6))

    def task_parameters(self) -> Iterable[torch.nn.Parameter]:
        return self.base.task_parameters()

    def encode(self, batch: Batch) -> Tensor:
        features: Tensor = self.base.encode(batch)
        return (features - self.get_buffer("mean")) / self.get_buffer("std")


def in_batches(encoded: Sequence[EncodedExample]) -> Iterator[list[EncodedExample]]:
    for first in range(0, len(encoded), BATCH_SIZE):
        yield list(encoded[first : first + BATCH_SIZE])
