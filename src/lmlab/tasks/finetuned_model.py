"""Interface of fine-tuned models of any task: predicted answers, metrics; loads the base model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.data.tokenizers import Tokenizer
from lmlab.sampling.question_answering import AnsweredQuestion
from lmlab.tasks.confidence_intervals import TaskMetrics
from lmlab.tasks.task import Row, Task
from lmlab.training.external_memory import load_external_memory
from lmlab.training.run_config import RunConfig
from lmlab.training.run_folder import RunFolder
from lmlab.training.system_building import build_from_config


@dataclass(frozen=True, kw_only=True)
class TaskAnswer:
    """The predicted answer to a row."""

    answer: Any

    def details(self) -> list[str]:
        """Lines that explain the answer."""
        return []

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with the fields of the row."""
        return {"answered": self.answer}

    def record(self, row: Row) -> dict[str, Any]:
        """The line of predictions.jsonl: the row with its answer."""
        return {**row, **self.as_dict()}


@dataclass(frozen=True, kw_only=True, eq=False)
class FinetunedModel(ABC):
    """A fine-tuned model, ready to predict."""

    has_graph: ClassVar[bool] = False
    """Whether answers come with a graph that can be plotted."""
    task: Task
    system: nn.Module
    """The base under its head, with the judge of long texts if there is one."""
    tokenizer: Tokenizer
    path: Path

    @property
    @abstractmethod
    def base(self) -> System:
        """The pretrained model under the head."""

    def predict(self, rows: Sequence[Row]) -> list[Any]:
        """The answer to each row, which needs the task's fields without those predicted."""
        return [answer.answer for answer in self.predict_with_details(rows)]

    @abstractmethod
    def predict_with_details(self, rows: Sequence[Row]) -> Sequence[TaskAnswer]:
        """The answer to each row with its evidence."""

    @abstractmethod
    def check(self, rows: Sequence[Row]) -> None:
        """A UserError for a row that lacks a field needed for its prediction."""

    def metrics(self, rows: Sequence[Row], answers: Sequence[Any]) -> TaskMetrics | None:
        """The metrics of bare answers; None if the rows lack the right ones."""
        return None

    def questions_cut(self, rows: Sequence[Row]) -> int:
        """The number of truncated questions."""
        return 0

    def ask_stream(
        self, chunks: Iterable[Sequence[str]], **options: Any
    ) -> Iterator[AnsweredQuestion]:
        """Answers to questions that arrive in chunks, in input order."""
        raise UserError(
            f"{self.path} was fine-tuned to {self.task.name}, which answers rows and not "
            "questions; use lmlab predict."
        )


def load_base(run: RunFolder, config: RunConfig) -> tuple[System, Tokenizer]:
    """The base model that a fine-tuned run's config describes, and the run's tokenizer."""
    tokenizer = Tokenizer.load(run.tokenizer)
    memories = load_external_memory(config.memories, run.memory)
    return build_from_config(config, config.vocabulary, memories, tokenizer), tokenizer
