"""Fine-tuned runs: loaded again, and asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from lmlab.core.errors import UserError
from lmlab.core.registry import find_system
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.tasks.answering import answer_rows
from lmlab.tasks.catalogue import find_task
from lmlab.tasks.generate import Generate
from lmlab.tasks.rows import Row
from lmlab.tasks.systems import Continuing, WithHead, on_top
from lmlab.tasks.task import Task
from lmlab.training.files import read_tensors
from lmlab.training.runs import RunFolder, build_described


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskModel:
    """A fine-tuned system, ready to answer."""

    system: WithHead | Continuing
    task: Task
    tokenizer: Tokenizer
    path: Path

    def predict(self, rows: Sequence[Row]) -> list[Any]:
        """The answer to each row; what a row needs is what the task's fields say, answers aside."""
        asked = [name for name in self.task.fields if name not in ANSWERS]
        for number, row in enumerate(rows, start=1):
            if missing := [name for name in asked if name not in row]:
                raise UserError(f"row {number} of {self.task.name} needs {missing[0]}.")
        longest = 10**6 if self.system.window is None else self.system.window + 1
        bare = [{name: row[name] for name in asked} for row in rows]
        vocabulary = self.system.vocabulary
        encoded = [self.task.encode(row, self.tokenizer, vocabulary, longest) for row in bare]
        return answer_rows(self.system, self.task, self.tokenizer, bare, encoded)


ANSWERS = ("label", "tags", "answer", "target")
"""The fields that hold what is to be told."""


def load_task(path: Path | str) -> TaskModel:
    """The fine-tuned system of a run's folder."""
    run = RunFolder(Path(path))
    config = run.read_config()
    if "task" not in config:
        raise UserError(f"{run.path} was not fine-tuned to any task; see lmlab finetune --help.")
    if not run.tokenizer.exists():
        raise UserError(f"the run {run.path} has lost its tokenizer.json.")
    told, card = config["task"], find_system(config["system"])
    kind = find_task(told["name"])
    task = Generate(conditional=card.conditional) if kind is Generate else kind(told["labels"])
    base = build_described(config, Vocabulary(**config["vocabulary"]))
    system = on_top(base, task, frozen=bool(told["frozen"]))
    if not run.weights.exists():
        raise UserError(f"the run {run.path} has no weights yet; go on with --resume.")
    try:
        system.load_state_dict(read_tensors(run.weights))
    except (SafetensorError, RuntimeError, OSError) as error:
        first = str(error).splitlines()[0]
        raise UserError(f"{run.weights} is damaged or not of this run ({first}).") from error
    tokenizer = Tokenizer.load(run.tokenizer)
    return TaskModel(system=system.eval(), task=task, tokenizer=tokenizer, path=run.path)
