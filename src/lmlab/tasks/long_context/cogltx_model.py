"""A judge and a reasoner in one system: what CogLTX trains (Ding et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch

from lmlab.core.batch import Batch
from lmlab.core.loss import Loss
from lmlab.core.protocols import EncodeTokens, require
from lmlab.core.state import State
from lmlab.core.system import System
from lmlab.tasks.finetuned_systems import (
    TaskHeadModel,
    encoder_width,
)
from lmlab.tasks.long_context.relevance_scorer import RelevanceScorer
from lmlab.tasks.tagging import Tagging
from lmlab.tasks.task import Task

RELEVANCE_BUFFER = "marks"
"""The buffer of what is relevant in the training examples, as far as is known."""


class CogLTX(System):
    """A judge and a reasoner, each an encoder of its own that starts as the trained system.

    A training batch holds memories with the task's labels; its `condition` what the judge is taught
    on with the relevance of each token, z_rand, and the condition of that z_relv. The loss is the
    sum of both means:

        mean over answers of -log p(answer | z)  +  mean over texts of the judge's cross-entropy
    """

    watched = "loss"

    def __init__(self, base: System, task: Task, *, frozen: bool) -> None:
        super().__init__()
        require(base, EncodeTokens, "recalling blocks of a long text")
        width = encoder_width(base, task)
        judge_width = width if task.needs_tokens else encoder_width(base, Tagging())
        self.vocabulary, self.window = base.vocabulary, base.window
        self.judge = RelevanceScorer(deepcopy(base), width=judge_width, frozen=frozen)
        self.reasoner = TaskHeadModel(base, task, width=width, frozen=frozen)

    def loss(
        self,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        reasoned, _ = self.reasoner.loss(replace(batch, condition=None))
        if batch.condition is None:
            return reasoned, None
        each = torch.stack([self.judge.loss(z).mean() for z in _chained(batch.condition)])
        # So that both weigh the same whatever the number of labels of a text.
        judged = each.mean() * reasoned.count
        parts = {"reasoner": reasoned, "judge": Loss(judged, reasoned.count)}
        return Loss(reasoned.total + judged, reasoned.count, parts), None

    @property
    def base(self) -> System:
        """The encoder that answers."""
        return self.reasoner.base

    def answers(self, *given: Any) -> list[Any]:
        return self.reasoner.answers(*given)

    def set_relevance(self, marks: torch.Tensor) -> None:
        """Keep the marks (examples, blocks) of the training with the weights, for its resuming."""
        self.register_buffer(RELEVANCE_BUFFER, marks)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Marks of the training are left out where there is no training."""
        wanted = {
            k: v
            for k, v in state_dict.items()
            if k != RELEVANCE_BUFFER or hasattr(self, RELEVANCE_BUFFER)
        }
        return super().load_state_dict(wanted, strict, assign)


def _chained(batch: Batch | None) -> Iterator[Batch]:
    """A batch, its condition, the condition of that, each by itself."""
    while batch is not None:
        yield replace(batch, condition=None)
        batch = batch.condition
