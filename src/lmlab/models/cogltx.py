"""CogLTX's networks and joint loss: token relevance scorer (judge), reasoner; no MemRecall here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.loss import IGNORE_LABEL, Loss
from lmlab.core.protocols import EncodeTokens, require
from lmlab.core.state import State
from lmlab.core.system import System, TrainableSystem
from lmlab.models.finetuned import TaskHead, TaskHeadModel, encoder_width

RELEVANCE_BUFFER = "marks"
"""The buffer with the relevance marks of the training examples' blocks."""


class RelevanceScorer(nn.Module):
    """MemRecall's judge: sigmoid(MLP(encoder(z))), a relevance in (0, 1) for each token of z.

    The score of a block is the mean over its tokens, without its end token.
    """

    def __init__(self, base: System, *, width: int, frozen: bool, dropout: float = 0.1) -> None:
        super().__init__()
        self.base, self.frozen = base, frozen
        self.mlp = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)
        )
        if frozen:
            base.requires_grad_(False)

    def train(self, mode: bool = True) -> RelevanceScorer:
        super().train(mode)
        if self.frozen:
            self.base.eval()
        return self

    def log_odds(self, batch: Batch) -> Tensor:
        """(B, T) logits, before the sigmoid."""
        vectors = self.base.encode_tokens(batch)  # type: ignore[operator]
        log_odds: Tensor = self.mlp(vectors).squeeze(-1)
        return log_odds

    def loss(self, batch: Batch) -> Tensor:
        """(B,) cross-entropy with the labels (B, T) of 0 and 1, the mean over each row's tokens."""
        assert batch.labels is not None
        labelled = (batch.labels != IGNORE_LABEL).float()
        target = batch.labels.clamp(min=0).float()
        losses = F.binary_cross_entropy_with_logits(self.log_odds(batch), target, reduction="none")
        return (losses * labelled).sum(1) / labelled.sum(1)


class CogLTX(TrainableSystem):
    """CogLTX: a judge and a reasoner, each with an encoder of its own initialised from the base.

    A training batch holds working memories with the task's labels; its `condition` is the judge's
    first training input z_rand with the relevance of each token, and the condition of that z_relv.
    The loss is the sum of both means:

        mean over answers of -log p(answer | z)  +  mean over texts of the judge's cross-entropy
    """

    validation_metric = "loss"

    def __init__(self, base: System, task: TaskHead, *, frozen: bool) -> None:
        super().__init__()
        require(base, EncodeTokens, "recalling blocks of a long text")
        needed_by = f"the task {task.name}"
        width = encoder_width(base, per_token=task.needs_tokens, needed_by=needed_by)
        scorer_width = width
        if not task.needs_tokens:
            scorer_width = encoder_width(base, per_token=True, needed_by="MemRecall's judge")
        self.vocabulary = base.vocabulary
        self.relevance_scorer = RelevanceScorer(deepcopy(base), width=scorer_width, frozen=frozen)
        self.reasoner = TaskHeadModel(base, task, width=width, frozen=frozen)

    @property
    def window(self) -> int | None:
        return self.reasoner.window

    def loss(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> tuple[Loss, State | None]:
        reasoner_loss, _ = self.reasoner.loss(replace(batch, condition=None))
        if batch.condition is None:
            return reasoner_loss, None
        scorer_losses = torch.stack(
            [self.relevance_scorer.loss(z).mean() for z in _condition_chain(batch.condition)]
        )
        # Equal weight for both losses, whatever the number of labels of a text.
        scorer_loss = scorer_losses.mean() * reasoner_loss.count
        parts = {"reasoner": reasoner_loss, "judge": Loss(scorer_loss, reasoner_loss.count)}
        return Loss(reasoner_loss.total + scorer_loss, reasoner_loss.count, parts), None

    @property
    def base(self) -> System:
        """The reasoner's encoder."""
        return self.reasoner.base

    def answers(self, batch: Batch, encoded: Sequence[Any], rows: Sequence[Any]) -> list[Any]:
        return self.reasoner.answers(batch, encoded, rows)

    def set_relevance(self, marks: torch.Tensor) -> None:
        """Store the relevance marks (examples, blocks) with the weights, for resuming training."""
        self.register_buffer(RELEVANCE_BUFFER, marks)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Outside of training the marks of the training examples are ignored."""
        weights = {
            k: v
            for k, v in state_dict.items()
            if k != RELEVANCE_BUFFER or hasattr(self, RELEVANCE_BUFFER)
        }
        return super().load_state_dict(weights, strict, assign)


def _condition_chain(batch: Batch | None) -> Iterator[Batch]:
    """A batch, its condition, and the condition of that, each separately."""
    while batch is not None:
        yield replace(batch, condition=None)
        batch = batch.condition
