"""Few-shot prompting (in-context learning): examples in the prompt, most probable candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from lmlab.core.errors import UserError
from lmlab.core.protocols import Step, require
from lmlab.core.untrusted_input import check_seed
from lmlab.scoring.conditional import conditional_scores
from lmlab.scoring.scorer import Scorer
from lmlab.tasks.confidence_intervals import measure_answers
from lmlab.tasks.sequence_task import SequenceTask
from lmlab.tasks.task import Row, Task


@dataclass(frozen=True, kw_only=True)
class FewShotResult:
    """Metrics of a model prompted with examples of a task."""

    task: str
    shots: int
    rows: int
    metrics: Mapping[str, float]
    example: str
    """One prompt, as given to the model."""
    answers: tuple[str, ...]
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """95 % confidence intervals of the metrics, over the evaluated rows."""
    warnings: tuple[str, ...] = ()
    """Warnings for the user: the accuracy is not better than that of the majority class."""
    note: str | None = None
    """A note for the user if some examples exceed the window."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class PromptFormat:
    """Prompt format: `question SIGN answer SEPARATOR question SIGN answer …`."""

    sign: str = " : "
    separator: str = " . "

    def text(self, task: type[SequenceTask], row: Row) -> str:
        """The part of an example before the answer."""
        inputs = [str(row[name]) for name in task.input_fields()]
        return " / ".join(inputs) + self.sign

    def examples(self, task: type[SequenceTask], rows: Sequence[Row]) -> list[str]:
        """Rows with their answers, formatted for a prompt."""
        return [self.text(task, row) + task.expected(row) + self.separator for row in rows]

    def prompt(self, task: type[SequenceTask], examples: Sequence[Row], row: Row) -> str:
        """The example rows with their answers, then the row without."""
        return "".join(self.examples(task, examples)) + self.text(task, row)


def predict_few_shot(
    scorer: Scorer,
    task: type[Task],
    train: Sequence[Row],
    rows: Sequence[Row],
    *,
    shots: int,
    style: PromptFormat | None = None,
    seed: int = 0,
) -> FewShotResult:
    """Few-shot prediction: the most probable candidate answer after `shots` examples per row.

    The answer is the argmax over candidates of log p(answer | prompt); the candidates are the
    answers of the training rows, for generation too (Brown et al. 2020). Examples are resampled per
    row.
    """
    require(scorer.system, Step, "few-shot prompting")
    if not (task.can_prompt and issubclass(task, SequenceTask)):
        raise UserError(
            f"prompting does not apply to the task {task.name}, whose answers are not one text."
        )
    if not 0 <= shots <= len(train):
        raise UserError(
            f"shots must be at most {len(train)}, the rows available as examples, got {shots}."
        )
    if not rows:
        raise UserError("there are no rows to evaluate; give 1 or more.")
    style, generator = style or PromptFormat(), np.random.default_rng(check_seed(seed))
    candidates = sorted({task.expected(row) for row in train})
    if len(candidates) == 1:
        raise UserError(
            f"all example rows have the answer {candidates[0]!r}; give rows with two or more "
            "answers."
        )
    answers, prompt, fitting = [], "", shots
    longest_answer = max(candidates, key=len)
    for row in rows:
        examples = [train[index] for index in generator.permutation(len(train))[:shots]]
        prompt = style.prompt(task, examples, row)
        formatted = style.examples(task, examples)
        fitting = min(fitting, _examples_in_window(scorer, formatted, prompt + longest_answer))
        scored = conditional_scores(scorer, [(prompt, answer) for answer in candidates])
        totals = [score.total for score in scored]
        answers.append(candidates[int(np.argmax(totals))])
    metrics = measure_answers(task, [task.expected(row) for row in rows], answers)
    return FewShotResult(
        task=task.name,
        shots=shots,
        rows=len(rows),
        metrics=metrics.metrics,
        intervals=metrics.intervals,
        warnings=metrics.warnings,
        example=prompt,
        answers=tuple(answers),
        note=_note(fitting, shots, scorer.window),
    )


def _examples_in_window(scorer: Scorer, examples: Sequence[str], text: str) -> int:
    """How many examples of a prompt, the last ones, fit into the window with the text."""
    if scorer.window is None:
        return len(examples)
    _, spans = scorer.tokenizer.encode_with_offsets(text)
    # The start token takes a position too.
    beyond = len(spans) + 1 - scorer.window
    first = spans[beyond][0] if 0 < beyond < len(spans) else 0
    starts = accumulate((len(example) for example in examples[:-1]), initial=0)
    return sum(start >= first for start in starts) if examples else 0


def _note(fitting: int, shots: int, window: int | None) -> str | None:
    if fitting >= shots:
        return None
    return (
        f"the context window of {window} tokens holds {fitting} of the {shots} examples of the "
        f"longest prompt; the others were truncated, so use {fitting} shots or fewer."
    )
