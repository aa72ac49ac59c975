"""Fine-tuned runs: loaded again, and asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmlab.core.errors import UserError
from lmlab.core.registry import find_system
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.tasks.confidence_intervals import (
    TaskMetrics,
    measure_answers,
)
from lmlab.tasks.generation import Generation
from lmlab.tasks.input_pipeline import (
    InputPipeline,
    LongTextConfig,
    TaskAnswer,
)
from lmlab.tasks.long_context.long_text_strategies import make_pipeline
from lmlab.tasks.multihop.multihop_model import (
    MultihopModel,
    is_hops,
    load_hops,
)
from lmlab.tasks.task import Task
from lmlab.tasks.task_registry import find_task
from lmlab.tasks.task_rows import ANSWER_FIELDS, Row
from lmlab.training.external_memory import load_external_memory
from lmlab.training.run_config import stored_model_guard
from lmlab.training.run_folder import (
    RunFolder,
    build_from_config,
    load_source_tokenizer,
    load_weights,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class FinetunedModel:
    """A fine-tuned system, ready to answer."""

    system: System
    reading: InputPipeline
    tokenizer: Tokenizer
    path: Path

    @property
    def task(self) -> Task:
        return self.reading.task

    def predict(self, rows: Sequence[Row]) -> list[Any]:
        """The answer to each row; what a row needs is what the task's fields say, answers aside."""
        return [each.answer for each in self.answer(rows)]

    def check(self, rows: Sequence[Row]) -> None:
        """A UserError for a row that lacks a field which is needed to answer it."""
        for number, row in enumerate(rows, start=1):
            if missing := [name for name in self._asked if name not in row]:
                raise UserError(f"row {number} of {self.task.name} needs {missing[0]}.")

    @property
    def _asked(self) -> list[str]:
        return [name for name in self.task.fields if name not in ANSWER_FIELDS]

    def answer(self, rows: Sequence[Row]) -> list[TaskAnswer]:
        """The same with what an answer was found in, where a text is read by blocks."""
        self.check(rows)
        asked = self._asked
        bare = [
            {name: row[name] for name in (*asked, *OPTIONAL_FIELDS) if name in row} for row in rows
        ]
        return self.reading.answer(self.system, self.reading.prepare(bare, training=False))

    def measure(self, rows: Sequence[Row], answers: Sequence[Any]) -> TaskMetrics | None:
        """How right answers to these rows are; None where a row does not say what is right."""
        if not rows or not all(name in row for row in rows for name in self.task.fields):
            return None
        return measure_answers(self.task, [self.task.expected(row) for row in rows], answers)


OPTIONAL_FIELDS = ("question",)
"""Fields that may be read without being needed."""


def load_task(path: Path | str) -> FinetunedModel | MultihopModel:
    """The fine-tuned system of a run's folder; of the task hops what `load_hops` gives.

    Both have `predict(rows)`: a `FinetunedModel` gives bare answers, a `MultihopModel` answers with the graph
    that they stand on.
    """
    return load_hops(path) if is_hops(path) else load_task_model(path)


def load_task_model(path: Path | str) -> FinetunedModel:
    """The fine-tuned system of a run of any task but hops."""
    run = RunFolder(Path(path))
    config = run.read_config()
    if "task" not in config:
        raise UserError(f"{run.path} was not fine-tuned to any task; see lmlab finetune --help.")
    run.verify()
    if not run.tokenizer.exists():
        raise UserError(f"the run {run.path} has lost its tokenizer.json.")
    with stored_model_guard(run.path, run.weights):
        return _load_described(run, config)


def _load_described(run: RunFolder, config: Mapping[str, Any]) -> FinetunedModel:
    """The fine-tuned system that a config.json describes, with its weights."""
    told, card = config["task"], find_system(config["system"])
    kind = find_task(told["name"])
    task = kind(told["labels"])
    if kind is Generation:
        read_by = load_source_tokenizer(config, run)
        task = Generation(conditional=card.conditional, source_tokenizer=read_by)
    tokenizer, memories = Tokenizer.load(run.tokenizer), load_external_memory(config, run.memory)
    base = build_from_config(config, Vocabulary(**config["vocabulary"]), memories)
    if memories.given():
        base.setup_tokenizer(tokenizer)  # what is looked up is made of texts
    reading = make_pipeline(
        told.get("long"),
        judge=told.get("judge"),
        task=task,
        tokenizer=tokenizer,
        system=base,
        settings=_long_settings(told),
    )
    system = reading.build(base, frozen=bool(told["frozen"]))
    load_weights(system, run)
    return FinetunedModel(system=system.eval(), reading=reading, tokenizer=tokenizer, path=run.path)


def _long_settings(told: Mapping[str, Any]) -> LongTextConfig:
    given = dict(told.get("long_settings", {}))
    if "keep" in given:
        given["keep"] = tuple(given["keep"])  # JSON knows no tuples
    return LongTextConfig(**given)
