"""A trained system with what a task asks of it on top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.loss import Loss
from lmlab.core.protocols import Encode, EncodeTokens, Step, require
from lmlab.core.state import State
from lmlab.core.system import Assembly, System
from lmlab.core.view import NO_TARGET, left_to_right
from lmlab.tasks.generate import Generate
from lmlab.tasks.task import LOST, NO_LABEL, Encoded, Task


class WithHead(System):
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

    def train(self, mode: bool = True) -> WithHead:
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
        lost = batch.labels == LOST
        told = batch.labels.masked_fill(lost, NO_LABEL)
        found = self.task.loss(self.scores(batch), told)
        if not lost.any():
            return found, None
        # Where the answer is not in what was read, all places are as likely.
        guessed = (lost * batch.lengths.log()[:, None]).sum()
        return Loss(found.total + guessed, found.count + lost.sum()), None

    @torch.no_grad()
    def answers(self, batch: Batch, encoded: Sequence[Encoded], rows: Sequence[Any]) -> list[Any]:
        return self.task.answers(self.scores(batch), batch, encoded, rows)


class Continuing(System):
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
        view = left_to_right(batch)
        place = torch.arange(view.inputs.shape[1], device=view.inputs.device)
        assert view.targets is not None
        # Place t of the view predicts place t + 1 of the batch, of which the first are given.
        given = place + 1 < batch.labels[:, :1]
        view = replace(view, targets=view.targets.masked_fill(given, NO_TARGET))
        found = self.base.target_log_probs(view).log_probs
        return Loss(-found.sum(), torch.tensor(float(len(found)), device=found.device)), None

    @torch.no_grad()
    def write(self, encoded: Encoded, *, longest: int) -> list[int]:
        """The likeliest token at each step after the source, until the end comes."""
        base: Any = self.base
        device = next(self.parameters()).device
        given = encoded.tokens[1 : encoded.labels[0]]
        condition = None
        if encoded.condition is not None:
            condition = Batch.from_sequences([encoded.condition], self.vocabulary.pad).to(device)
            given = []
        state = base.start(1, condition=condition)
        for token in given:
            state = base.advance(state, torch.tensor([token], device=device))
        written: list[int] = []
        while len(written) < longest:
            token = int(base.peek(state).log_probs[0].argmax())
            if token == self.vocabulary.end:
                break
            written.append(token)
            state = base.advance(state, torch.tensor([token], device=device))
        return written


def vector_width(base: System, task: Task) -> int:
    """The width of the vectors that the head reads, found by asking for one."""
    require(base, EncodeTokens if task.needs_tokens else Encode, f"the task {task.name}")
    asked: Any = base
    ends = [i for i in (base.vocabulary.opening, base.vocabulary.end) if i is not None]
    batch = Batch.from_sequences([ends], base.vocabulary.pad)
    with torch.no_grad():
        found = asked.encode_tokens(batch) if task.needs_tokens else asked.encode(batch)
    return int(found.shape[-1])


def on_top(base: System, task: Task, *, frozen: bool) -> WithHead | Continuing:
    """The system that is trained: with a head, or writing on."""
    if isinstance(task, Generate):
        return Continuing(base, conditional=task.conditional)
    return WithHead(base, task, width=vector_width(base, task), frozen=frozen)
