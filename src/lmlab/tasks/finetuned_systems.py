"""A trained system with what a task asks of it on top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.loss import IGNORE_LABEL, Loss
from lmlab.core.protocols import Encode, EncodeTokens, Step, require
from lmlab.core.state import State
from lmlab.core.system import Assembly, System
from lmlab.core.view import NO_TARGET, causal_view
from lmlab.tasks.generation import Generation
from lmlab.tasks.task import ANSWER_TRUNCATED_LABEL, EncodedExample, Task


class TaskHeadModel(System):
    """A head on a system's vectors: p(answer | text) = softmax(W h + b).

    `frozen`: the system's parameters stay as they are and only the head learns (feature transfer),
    with what the system leaves to a task (ELMo's mix of its layers); else all of them do (parameter
    transfer).
    """

    watched = "loss"

    def __init__(self, base: System, task: Task, *, width: int, frozen: bool, dropout: float = 0.1):
        super().__init__()
        require(base, EncodeTokens if task.needs_tokens else Encode, f"the task {task.name}")
        self.vocabulary, self.window = base.vocabulary, base.window
        self.base, self.task, self.frozen = base, task, frozen
        self.dropout = nn.Dropout(dropout)
        self.head = task.head(width)
        if frozen:
            for parameter in base.parameters():
                parameter.requires_grad_(False)
        for parameter in base.task_parameters():
            parameter.requires_grad_(True)

    def train(self, mode: bool = True) -> TaskHeadModel:
        """A frozen system is used as it will be: without dropout."""
        super().train(mode)
        if self.frozen:
            self.base.eval()
        return self

    def scores(self, batch: Batch) -> Tensor:
        """(B, labels) for each text, or (B, T, labels) for each token."""
        base: Any = self.base
        vectors = base.encode_tokens(batch) if self.task.needs_tokens else base.encode(batch)
        scored: Tensor = self.head(self.dropout(vectors))
        return scored

    def loss(
        self,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        assert batch.labels is not None, "a task needs labels"
        lost = batch.labels == ANSWER_TRUNCATED_LABEL
        told = batch.labels.masked_fill(lost, IGNORE_LABEL)
        found = self.task.loss(self.scores(batch), told)
        if not lost.any():
            return found, None
        # Where the answer is not in what was read, all places are as likely.
        guessed = (lost * batch.lengths.log()[:, None]).sum()
        return Loss(found.total + guessed, found.count + lost.sum()), None

    @torch.no_grad()
    def answers(
        self, batch: Batch, encoded: Sequence[EncodedExample], rows: Sequence[Any]
    ) -> list[Any]:
        return self.task.answers(self.scores(batch), batch, encoded, rows)


class FinetunedGenerator(System):
    """A system that writes what follows a source, trained on that alone.

    Its weights are the system's own, so that the run it leaves is one like any other.
    """

    watched = "loss"

    def __init__(self, base: System, *, conditional: bool) -> None:
        super().__init__()
        require(base, Step, "generation")
        self.vocabulary, self.window = base.vocabulary, base.window
        self.base, self.conditional = base, conditional

    def begin_step(self, step: int) -> None:
        self.base.begin_step(step)

    def state_dict(self, *args: Any, **words: Any) -> dict[str, Any]:  # type: ignore[override]
        return self.base.state_dict(*args, **words)

    def load_state_dict(self, *args: Any, **words: Any) -> Any:
        return self.base.load_state_dict(*args, **words)

    def loss(
        self,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        """-log p(target | source), over the tokens of the target and its end."""
        if self.conditional:
            return self.base.loss(batch, generator=generator)
        assert batch.labels is not None and isinstance(self.base, Assembly)
        view = causal_view(batch)
        place = torch.arange(view.inputs.shape[1], device=view.inputs.device)
        assert view.targets is not None
        # Place t of the view predicts place t + 1 of the batch, of which the first are given.
        given = place + 1 < batch.labels[:, :1]
        view = replace(view, targets=view.targets.masked_fill(given, NO_TARGET))
        found = self.base.target_log_probs(view).log_probs
        return Loss(-found.sum(), torch.tensor(float(len(found)), device=found.device)), None

    def max_generation_length(self, condition: int) -> int | None:
        """A source that is read as the beginning of the text takes places of the window."""
        if self.conditional:
            return self.base.max_generation_length(condition)
        return None if self.window is None else self.window - (condition - 1)

    def start(self, rows: int, *, condition: Batch | None = None) -> State:
        """The state after the sources, which are of one length where they are no condition."""
        base: Any = self.base
        assert condition is not None, "what is written follows a source"
        if self.conditional:
            found: State = base.start(rows, condition=condition)
            return found
        assert bool((condition.lengths == condition.tokens.shape[1]).all()), "of one length"
        state: State = base.start(rows)
        for tokens in condition.tokens.unbind(1)[1:]:
            state = base.advance(state, tokens)
        return state

    def peek(self, state: State) -> Categorical:
        base: Any = self.base
        found: Categorical = base.peek(state)
        return found

    def advance(self, state: State, tokens: Tensor) -> State:
        base: Any = self.base
        found: State = base.advance(state, tokens)
        return found


def encoder_width(base: System, task: Task) -> int:
    """The width of the vectors that the head reads, found by asking for one."""
    require(base, EncodeTokens if task.needs_tokens else Encode, f"the task {task.name}")
    asked: Any = base
    ends = [i for i in (base.vocabulary.opening, base.vocabulary.end) if i is not None]
    batch = Batch.collate([ends], base.vocabulary.pad)
    with torch.no_grad():
        found = asked.encode_tokens(batch) if task.needs_tokens else asked.encode(batch)
    return int(found.shape[-1])


def add_task_head(base: System, task: Task, *, frozen: bool) -> TaskHeadModel | FinetunedGenerator:
    """The system that is trained: with a head, or writing on."""
    if isinstance(task, Generation):
        return FinetunedGenerator(base, conditional=task.conditional)
    return TaskHeadModel(base, task, width=encoder_width(base, task), frozen=frozen)
