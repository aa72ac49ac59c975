"""Fine-tuned models: task head on an encoder, pooled windows of long texts, generator of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from lmlab.core.assembly import Assembly
from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.loss import IGNORE_LABEL, Loss
from lmlab.core.protocols import Encode, EncodeTokens, Step, require
from lmlab.core.state import State
from lmlab.core.system import System, TrainableSystem
from lmlab.core.view import NO_TARGET, causal_view

ANSWER_TRUNCATED_LABEL = -101
"""The label of an answer that was truncated away with its text: any prediction is a guess."""


class TaskHead(Protocol):
    """Task interface of a model: the head, its loss and how scores become answers."""

    @property
    def name(self) -> str: ...

    @property
    def needs_tokens(self) -> bool:
        """Whether the head takes a vector per token rather than one per sequence."""
        ...

    def make_head(self, width: int) -> nn.Module: ...

    def loss(self, scores: Tensor, labels: Tensor) -> Loss: ...

    def decode_answers(
        self, scores: Tensor, batch: Batch, encoded: Sequence[Any], rows: Sequence[Any]
    ) -> list[Any]: ...


@runtime_checkable
class AnswersRows(Protocol):
    """A model that answers the rows of a task."""

    def answers(self, batch: Batch, encoded: Sequence[Any], rows: Sequence[Any]) -> list[Any]:
        """The predicted answer to each row of the batch."""
        ...


class TaskHeadModel(TrainableSystem):
    """A task head on a pretrained encoder: p(answer | text) = softmax(W h + b).

    `frozen`: only the head is trained (feature transfer), with what the encoder leaves to a task
    (ELMo's layer mix); else all parameters are (fine-tuning).
    """

    validation_metric = "loss"

    def __init__(
        self, base: System, task: TaskHead, *, width: int, frozen: bool, dropout: float = 0.1
    ) -> None:
        super().__init__()
        require(base, EncodeTokens if task.needs_tokens else Encode, f"the task {task.name}")
        self.vocabulary = base.vocabulary
        self.base, self.task, self.frozen = base, task, frozen
        self.dropout = nn.Dropout(dropout)
        self.head = task.make_head(width)
        if frozen:
            base.requires_grad_(False)
        for parameter in base.task_parameters():
            parameter.requires_grad_(True)

    @property
    def window(self) -> int | None:
        return self.base.window

    def train(self, mode: bool = True) -> TaskHeadModel:
        """A frozen encoder stays in evaluation mode, without dropout."""
        super().train(mode)
        if self.frozen:
            self.base.eval()
        return self

    def scores(self, batch: Batch) -> Tensor:
        """(B, labels) per sequence, or (B, T, labels) per token."""
        base: Any = self.base
        vectors = base.encode_tokens(batch) if self.task.needs_tokens else base.encode(batch)
        scored: Tensor = self.head(self.dropout(vectors))
        return scored

    def loss(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> tuple[Loss, State | None]:
        assert batch.labels is not None, "a task needs labels"
        truncated = batch.labels == ANSWER_TRUNCATED_LABEL
        labels = batch.labels.masked_fill(truncated, IGNORE_LABEL)
        loss = self.task.loss(self.scores(batch), labels)
        if not truncated.any():
            return loss, None
        # A truncated answer costs a uniform guess over the positions.
        guess_nats = (truncated * batch.lengths.log()[:, None]).sum()
        return Loss(loss.total + guess_nats, loss.count + truncated.sum()), None

    @torch.no_grad()
    def answers(self, batch: Batch, encoded: Sequence[Any], rows: Sequence[Any]) -> list[Any]:
        """The predicted answer to each row of the batch."""
        return self.task.decode_answers(self.scores(batch), batch, encoded, rows)


class WindowPoolingClassifier(TaskHeadModel):
    """Pooled sliding windows: p(label | text) = softmax(W pool_i(h_i) + b), h_i of window i.

    A row of a batch is all windows of a text in sequence, each beginning with <s>.
    """

    def __init__(
        self, base: System, task: TaskHead, *, width: int, frozen: bool, pool: str
    ) -> None:
        super().__init__(base, task, width=width, frozen=frozen)
        self.pool = pool

    @property
    def window(self) -> int | None:
        """None: a text may have any number of windows."""
        return None

    def scores(self, batch: Batch) -> Tensor:
        windows, owners = split_into_windows(batch, int(self.vocabulary.bos), self.vocabulary.pad)
        vectors: Tensor = self.base.encode(windows)  # type: ignore[operator]
        pooled = vectors.new_zeros(len(batch), vectors.shape[-1]).scatter_reduce(
            0,
            owners[:, None].expand_as(vectors),
            vectors,
            "mean" if self.pool == "mean" else "amax",
            include_self=False,
        )
        scored: Tensor = self.head(self.dropout(pooled))
        return scored


def split_into_windows(batch: Batch, start: int, pad: int) -> tuple[Batch, Tensor]:
    """The windows of all rows, each a row of its own, and the row that each belongs to."""
    windows: list[list[int]] = []
    owners: list[int] = []
    for row, (tokens, length) in enumerate(
        zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)
    ):
        for token in tokens[:length]:
            if token == start:
                windows.append([])
                owners.append(row)
            windows[-1].append(token)
    device = batch.tokens.device
    return Batch.collate(windows, pad).to(device), torch.tensor(owners, device=device)


class TrainingWrapper(TrainableSystem):
    """Base of wrappers that train a model: their saved and loaded weights are the model's own."""

    validation_metric = "loss"
    wrapped: ClassVar[str]
    """The attribute that holds the model."""

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:  # type: ignore[override]
        weights: dict[str, Any] = getattr(self, self.wrapped).state_dict(*args, **options)
        return weights

    def load_state_dict(self, *args: Any, **options: Any) -> Any:
        return getattr(self, self.wrapped).load_state_dict(*args, **options)


class FinetunedGenerator(TrainingWrapper):
    """A generator fine-tuned on pairs: the loss is over the target alone.

    `conditional`: the base takes the source as its condition; else the source is the prefix.
    """

    wrapped = "base"

    def __init__(self, base: System, *, conditional: bool) -> None:
        super().__init__()
        require(base, Step, "generation")
        self.vocabulary = base.vocabulary
        self.base, self.conditional = base, conditional

    @property
    def window(self) -> int | None:
        return self.base.window

    def begin_step(self, step: int) -> None:
        self.base.begin_step(step)

    def loss(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> tuple[Loss, State | None]:
        """-log p(target | source), over the tokens of the target and its end."""
        if self.conditional:
            assert isinstance(self.base, TrainableSystem)
            return self.base.loss(batch, generator=generator)
        assert batch.labels is not None and isinstance(self.base, Assembly)
        view = causal_view(batch)
        position = torch.arange(view.inputs.shape[1], device=view.inputs.device)
        assert view.targets is not None
        # Position t of the view predicts token t + 1 of the batch; the first ones are the source.
        in_source = position + 1 < batch.labels[:, :1]
        view = replace(view, targets=view.targets.masked_fill(in_source, NO_TARGET))
        log_probs = self.base.target_log_probs(view).log_probs
        count = torch.tensor(float(len(log_probs)), device=log_probs.device)
        return Loss(-log_probs.sum(), count), None

    def max_generation_length(self, condition: int | None) -> int | None:
        """A source that is the prefix of the text takes positions of the window."""
        if self.conditional or condition is None:
            return self.base.max_generation_length(condition)
        return None if self.window is None else self.window - (condition - 1)

    def start(self, rows: int, *, condition: Batch | None = None) -> State:
        """The state after the sources, which have one length where they are prefixes."""
        base: Any = self.base
        assert condition is not None, "a generator needs sources"
        if self.conditional:
            started: State = base.start(rows, condition=condition)
            return started
        assert bool((condition.lengths == condition.tokens.shape[1]).all()), "of one length"
        state: State = base.start(rows)
        for tokens in condition.tokens.unbind(1)[1:]:
            state = base.advance(state, tokens)
        return state

    def peek(self, state: State) -> Categorical:
        base: Any = self.base
        distribution: Categorical = base.peek(state)
        return distribution

    def advance(self, state: State, tokens: Tensor) -> State:
        base: Any = self.base
        advanced: State = base.advance(state, tokens)
        return advanced


def encoder_width(base: System, *, per_token: bool, needed_by: str) -> int:
    """The width of the encoder's vectors, per token or per sequence, by encoding one input."""
    require(base, EncodeTokens if per_token else Encode, needed_by)
    encoder: Any = base
    ends = [i for i in (base.vocabulary.bos, base.vocabulary.end) if i is not None]
    batch = Batch.collate([ends], base.vocabulary.pad)
    with torch.no_grad():
        vectors = encoder.encode_tokens(batch) if per_token else encoder.encode(batch)
    return int(vectors.shape[-1])


def add_task_head(base: System, task: TaskHead, *, frozen: bool) -> TaskHeadModel:
    """The base with the head of a task, of the width of the base's vectors."""
    width = encoder_width(base, per_token=task.needs_tokens, needed_by=f"the task {task.name}")
    return TaskHeadModel(base, task, width=width, frozen=frozen)
