"""System, the base class of models, and frozen copies of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.memrecall_config import MemRecallConfig
from lmlab.core.score import ScoreKind, ScorerKind
from lmlab.core.state import State
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.vocabulary import Vocabulary


class FrozenSystem(nn.Module):
    """A copy of a system without gradients, always in evaluation mode.

    It is saved and moved with its owner, whose training does not change it.
    """

    def __init__(self, system: System) -> None:
        super().__init__()
        self.system = deepcopy(system).requires_grad_(False)
        self.train(False)

    def train(self, mode: bool = True) -> Self:
        return super().train(False)


NATS_PER_TOKEN = "nats per token"
"""The unit of losses that are log-probabilities of texts."""


class System(nn.Module):
    """A distribution over sequences; protocols say what more it can do."""

    vocabulary: Vocabulary
    input_kind: Literal["tokens", "images"] = "tokens"
    """What it encodes: tokens of a text, or the pixels of an image."""
    fitting: str = "gradient"
    """gradient, counting, em, words or cooccurrence: which fitter trains it."""

    scorer_kind: ClassVar[ScorerKind] = "whole-text"
    """How its own score of a text comes about: left-to-right, masked, energy, reconstruction or
    whole-text; see `core.score.ScorerKind`."""
    validation_metric: str = "log_prob"
    """Validation metric during training: `log_prob`; `loss`, where that is cheaper and usual
    (masked models); or the name of a part of the loss."""
    fill_score_kind: ScoreKind = "pseudo"
    """Kind of the score Σ_i log p(a_i | text, a_<i) over gaps, each term by `Fill`: exact if all
    terms come from one joint distribution, so that their order does not matter (an HMM)."""
    memrecall: MemRecallConfig | None = None
    """How it encodes texts longer than its window in downstream tasks (CogLTX); None by default."""

    @property
    def window(self) -> int | None:
        """Maximum number of tokens of a sequence after the first; None if there is no limit."""
        return None

    @property
    def segment_length(self) -> int | None:
        """Segment length of texts of any length, see `Backbone.segment_length`; None without."""
        return None

    @property
    def memory_length(self) -> int | None:
        """Positions that are carried between segments, see `Backbone.memory_length`."""
        return None

    @property
    def scores_end(self) -> bool:
        """Whether its own score counts the end token.

        A masked model and most energies are conditioned on the length.
        """
        return self.scorer_kind not in ("masked", "energy")

    @property
    def cpu_tokens_at_once(self) -> int | None:
        """Fastest number of tokens per pass on a CPU; None if any is as fast."""
        return None

    @property
    def loss_unit(self) -> str:
        """Unit of its losses.

        A loss other than log_prob has its own targets (masked tokens, whole texts against
        negatives), and is not per token.
        """
        return NATS_PER_TOKEN if self.validation_metric == "log_prob" else "nats per target"

    @property
    def loss_is_comparable(self) -> bool:
        """Whether training losses are comparable with the validation metric."""
        return True

    @property
    def needs_mixed_lengths(self) -> bool:
        """Whether training batches must mix texts of all lengths."""
        return False

    def begin_step(self, step: int) -> None:
        """Called before each training step with the number of steps done; ignored by most."""

    def begin_continued(self) -> None:
        """Called before `setup_data` where training continues from the weights of another run.

        Ignored by most; what belongs to a first training alone is left out by others.
        """

    @contextmanager
    def refreshed(self) -> Iterator[None]:
        """During evaluation and checkpointing, rebuild what is derived from the weights.

        REALM's index, say; the stale copy is restored on exit.
        """
        yield

    def setup_tokenizer(self, tokenizer: TokenizerProtocol) -> None:
        """Called with the tokenizer before training; few systems need it (whole-word masking)."""

    def setup_data(self, tokens: NDArray[np.generic], offsets: NDArray[np.int64]) -> None:
        """Called with the training split before training: flat ids and sequence offsets.

        What is derived from it (counts, an index) is kept in buffers and saved with the weights:
        loading a run does not repeat this, resuming it does, with the same result.
        """

    def task_parameters(self) -> Iterable[nn.Parameter]:
        """Parameters of a task head, trained even if all others are frozen.

        They are not trained with the system itself.
        """
        return ()

    def check_length(self, tokens: int) -> None:
        """Raise a UserError if a sequence of so many tokens, context included, is too long."""
        if self.window is not None and tokens > self.window + 1:
            raise UserError(
                f"a sequence must have at most {self.window + 1} tokens, <s> included, got "
                f"{tokens}; give shorter texts, or "
                f"{self.lengthening_hint(tokens - self.window - 1)}."
            )

    def lengthening_hint(self, tokens: int) -> str:
        """Advice on how to allow texts that are so many tokens longer."""
        return "build it longer"

    def check_condition_length(self, tokens: int) -> None:
        """The same for the condition, which is encoded at once too."""
        self.check_length(tokens)

    def max_generation_length(self, condition: int | None) -> int | None:
        """Maximum number of tokens, the prefix included, given a condition of so many tokens.

        None if there is no limit. Its window, unless the condition shares the positions of the
        output.
        """
        return self.window

    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        """Internal values to plot, by name, with the meaning of their axes."""
        return {}

    @property
    def parameter_count(self) -> int:
        """Number of trainable parameters, shared ones counted once."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)


class TrainableSystem(System, ABC):
    """A system with a training loss, which every system of the zoo has."""

    @abstractmethod
    def loss(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> tuple[Loss, State | None]:
        """The training loss, and the state to carry on if text continues."""

    def held_out_loss(
        self, batch: Batch, *, state: State | None, generator: torch.Generator | None
    ) -> tuple[Loss, State | None]:
        """The validation loss, which may differ from the training loss."""
        return self.loss(batch, state=state, generator=generator)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Loss, State | None]:
        """The loss, under the name that distributed wrappers call."""
        return self.loss(*args, **kwargs)
