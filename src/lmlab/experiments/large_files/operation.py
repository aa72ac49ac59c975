"""What is done with the texts of a chunk: the base class of operations, and their seeds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from lmlab.core.errors import UserError
from lmlab.core.score import Summary
from lmlab.core.untrusted_input import MAX_SEED
from lmlab.data.readers import Example
from lmlab.experiments.large_files.result_rows import Row
from lmlab.training.run_folder import TrainedModel

Models = Mapping[str, TrainedModel]
SEED_STEP = 1_000_003
"""Between the seeds of chunks, so that samples of two chunks do not repeat each other."""


class Operation(ABC):
    """Makes rows of texts by trained models."""

    sources: ClassVar[bool] = False
    """Whether of a line with two columns the first is the text."""

    def __init__(self, models: Models, options: Mapping[str, Any]) -> None:
        self.models, self.options = models, dict(options)

    @staticmethod
    @abstractmethod
    def row_class(options: Mapping[str, Any]) -> type:
        """The class of the rows that these options give."""

    @property
    def model(self) -> TrainedModel:
        """The only model."""
        [model] = self.models.values()
        return model

    @abstractmethod
    def rows(self, examples: Iterator[Example], chunk: int) -> Iterator[Row]:
        """Rows of the texts of a chunk, in order; it depends on nothing outside of the chunk."""

    def summaries(self) -> dict[str, Summary]:
        """Totals of the rows given by the last call of `rows`, by model."""
        return {}


def chunk_seed(seed: int, chunk: int) -> int:
    """The seed of a chunk; that of the first is the user's."""
    return (seed + SEED_STEP * chunk) % (MAX_SEED + 1)


def single_text(example: Example) -> str:
    if example.condition is not None:
        raise UserError(f"line {example.line} has a source and a text; give a file of texts.")
    return example.text
