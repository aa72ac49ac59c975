"""Cloze classification (Schick and Schütze 2021; GLM): a label's words fill a text's blank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.loss import Loss
from lmlab.core.protocols import LogProb, require
from lmlab.core.state import State
from lmlab.core.system import System
from lmlab.models.finetuned import TaskHead, TrainingWrapper


class ClozeClassifier(TrainingWrapper):
    """p(label | text) ∝ p(the label's words | text ___), by a language model without a new head.

    The words are the verbaliser of the label, of any number of tokens; the blank is what the model
    generates given the text. Cost: a pass for each label.
    """

    wrapped = "base"

    def __init__(self, base: System, task: TaskHead, verbalisers: Sequence[Sequence[int]]) -> None:
        """`verbalisers`: the words of each label as `<s> … </s>`."""
        super().__init__()
        require(base, LogProb, f"the task {task.name}")
        self.vocabulary = base.vocabulary
        self.base, self.task = base, task
        self.verbalisers = [list(tokens) for tokens in verbalisers]

    @property
    def window(self) -> int | None:
        return self.base.window

    def begin_step(self, step: int) -> None:
        self.base.begin_step(step)

    def scores(self, batch: Batch) -> Tensor:
        """(B, labels) log-probabilities of the words of each label."""
        base: Any = self.base
        rows, labels = len(batch), len(self.verbalisers)
        texts = replace(batch, labels=None).select([r for r in range(rows) for _ in range(labels)])
        words = Batch.collate(self.verbalisers * rows, self.vocabulary.pad).to(batch.tokens.device)
        totals: Tensor = base.log_prob(replace(words, condition=texts)).totals
        return totals.view(rows, labels)

    def loss(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> tuple[Loss, State | None]:
        """-log p(label | text), normalised over the labels."""
        assert batch.labels is not None, "a task needs labels"
        return self.task.loss(self.scores(batch), batch.labels), None

    @torch.no_grad()
    def answers(self, batch: Batch, encoded: Sequence[Any], rows: Sequence[Any]) -> list[Any]:
        """The predicted label of each row of the batch."""
        return self.task.decode_answers(self.scores(batch), batch, encoded, rows)
