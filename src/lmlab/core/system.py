"""System, the base class of models; `Assembly` of backbone, emission, objective; frozen copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.capture import UNIT_INTERVAL, Capture
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.memrecall_config import MemRecallConfig
from lmlab.core.parts import (
    Backbone,
    CandidateLogits,
    Emission,
    HiddenStates,
    Objective,
    Predictions,
    prediction_mask,
)
from lmlab.core.prefix_sharing import build_prefix_index
from lmlab.core.protocols import LogProbs, TokenizerProtocol
from lmlab.core.sampled_loss import SampledLoss, SampledLossNetwork
from lmlab.core.score import ScoreKind
from lmlab.core.state import State
from lmlab.core.view import View
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
    window: int | None = None
    """Maximum input length; None if there is no limit."""
    segment_length: int | None = None
    """Segment length for texts of any length, with `memory_length` carried between segments; None
    if texts are encoded whole."""
    memory_length: int | None = None
    """Positions before a segment (without segments: before each token) that scores can depend on;
    None if nothing is forgotten."""
    configured_length: int | None = None
    """The setting `length` that it was built with, which determines the window; None without."""
    fitting: str = "gradient"
    """gradient, counting, em or words: which fitter trains it."""

    validation_metric: str = "log_prob"
    """Validation metric during training: `log_prob`; `loss`, where that is cheaper and usual
    (masked models); or the name of a part of the loss."""
    fill_score_kind: ScoreKind = "pseudo"
    """Kind of the score Σ_i log p(a_i | text, a_<i) over gaps, each term by `Fill`: exact if all
    terms come from one joint distribution, so that their order does not matter (an HMM)."""
    memrecall: MemRecallConfig | None = None
    """How it encodes texts longer than its window in downstream tasks (CogLTX); None by default."""

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
        if self.configured_length is None:
            return "build it longer"
        return f"train it with --set length={self.configured_length + tokens}"

    def check_condition_length(self, tokens: int) -> None:
        """The same for the condition, which is encoded at once too."""
        self.check_length(tokens)

    def max_generation_length(self, condition: int) -> int | None:
        """Maximum number of tokens it can generate given so many; None if there is no limit.

        Its window, unless the condition shares the positions of the output.
        """
        return self.window

    def loss(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> tuple[Loss, State | None]:
        """The training loss, and the state to carry on if text continues."""
        raise TypeError(f"{type(self).__name__} is not trained by gradient")

    def held_out_loss(
        self, batch: Batch, *, state: State | None, generator: torch.Generator | None
    ) -> tuple[Loss, State | None]:
        """The validation loss, which may differ from the training loss."""
        return self.loss(batch, state=state, generator=generator)

    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        """Internal values to plot, by name, with the meaning of their axes."""
        return {}

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Loss, State | None]:
        """The loss, under the name that distributed wrappers call."""
        return self.loss(*args, **kwargs)

    @property
    def parameter_count(self) -> int:
        """Number of trainable parameters, shared ones counted once."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)


class Assembly(System):
    """backbone × emission × objective, optionally trained with a sampled loss."""

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        backbone: Backbone,
        emission: Emission,
        objective: Objective,
        fitting: str = "gradient",
    ) -> None:
        super().__init__()
        if backbone.output_kind not in emission.input_kinds:
            raise UserError(
                f"{type(emission).__name__} takes {' or '.join(sorted(emission.input_kinds))}, "
                f"but {type(backbone).__name__} outputs {backbone.output_kind}; choose another "
                "emission."
            )
        objective.check_parts(backbone, emission)
        self.vocabulary = vocabulary
        self.backbone = backbone
        self.emission = emission
        self.objective = objective
        self.sampled_loss: SampledLoss | None = None
        self.fitting = fitting

    def set_sampled_loss(self, sampled_loss: SampledLoss) -> None:
        """Replace the log-probabilities in the objective's training loss by a sampled loss.

        log_prob does not change. Raises a UserError if these parts can't be trained so.
        """
        self.objective.check_sampled_loss()
        sampled_loss.check_parts(self.backbone, self.emission)
        self.sampled_loss = sampled_loss

    @property
    def loss_is_comparable(self) -> bool:
        return self.sampled_loss is None and self.objective.loss_is_comparable

    @property
    def needs_mixed_lengths(self) -> bool:
        return self.objective.needs_mixed_lengths

    def begin_step(self, step: int) -> None:
        self.objective.begin_step(step)

    def setup_data(self, tokens: NDArray[np.generic], offsets: NDArray[np.int64]) -> None:
        self.objective.setup_data(self, tokens, offsets)
        if self.sampled_loss is not None:
            self.sampled_loss.setup_data(self, tokens, offsets)

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions:
        """Log-probabilities of a view's targets.

        The emission is computed only at targets, and once per shared prefix.
        """
        hidden = self.hidden(view, state)
        prefixes = None if state is not None else build_prefix_index(view)
        mask = prediction_mask(view)
        if prefixes is None or not bool(mask.any()):
            return self.predict(view, hidden)
        assert view.targets is not None
        first_mask, query_index = prefixes.unique_queries(view.targets, mask)
        targets = view.targets[first_mask]
        if hidden.log_weights is None:
            ends, prefix_index = prefixes.unique_prefixes(first_mask)
            values = hidden.values.flatten(0, 1)[ends]
            log_probs = self.emission.log_prob_by_index(values, prefix_index, targets)
        else:
            log_probs = self._log_prob_at(hidden, first_mask, targets)
        return Predictions(log_probs=log_probs[query_index], target_mask=mask, state=hidden.state)

    def hidden(self, view: View, state: State | None = None) -> HiddenStates:
        """Hidden states of a view, whose attention mask the backbone must support."""
        self._check_attention_mask(view)
        hidden: HiddenStates = self.backbone(view, state)
        return hidden

    def hidden_at(self, view: View, mask: Tensor) -> Tensor:
        """(N, …) hidden states at the true entries of `mask` (B, T) alone, in row-major order."""
        self._check_attention_mask(view)
        return self.backbone.hidden_at(view, mask)

    def _check_attention_mask(self, view: View) -> None:
        for part in (view, view.prediction_view):
            if not isinstance(part.attention_mask, self.backbone.supported_masks):
                kinds = " or ".join(kind.__name__ for kind in self.backbone.supported_masks)
                raise UserError(
                    f"{type(self.backbone).__name__} supports attention masks of kind {kinds}, but "
                    f"this objective needs {type(part.attention_mask).__name__}."
                )

    def predict(self, view: View, hidden: HiddenStates) -> Predictions:
        """Log-probabilities of a view's targets, given its hidden states."""
        mask = prediction_mask(view)
        assert view.prediction_view.targets is not None
        log_probs = self._log_prob_at(hidden, mask, view.prediction_view.targets[mask])
        return Predictions(log_probs=log_probs, target_mask=mask, state=hidden.state)

    def scores(
        self, hidden: HiddenStates, mask: Tensor, candidates: Tensor, shared: Tensor | None = None
    ) -> Tensor:
        """(N, C + K) unnormalised token logits: see `CandidateLogits.scores`."""
        assert isinstance(self.emission, CandidateLogits) and hidden.log_weights is None
        return self.emission.scores(hidden.values[mask], candidates, shared)

    def initialise_logits(self, log_probs: Tensor) -> None:
        assert isinstance(self.emission, CandidateLogits)
        self.emission.initialise_logits(log_probs)

    def _log_prob_at(self, hidden: HiddenStates, mask: Tensor, targets: Tensor) -> Tensor:
        if hidden.log_weights is None:
            return self.emission.log_prob(hidden.values[mask], targets)
        # Latent parents: log Σ_m w_m p(target | component m), mixed after the emission.
        return torch.logsumexp(self._component_log_probs(hidden, mask, targets), dim=-1)

    def _component_log_probs(self, hidden: HiddenStates, mask: Tensor, targets: Tensor) -> Tensor:
        """(N, M) log w_m + log p(target | component m) at the N positions."""
        assert hidden.log_weights is not None
        weights = hidden.log_weights[mask]
        if self.backbone.output_kind == "sources":
            # Without a target, any predictable token will do, such as the first target.
            filler = int(targets[0]) if len(targets) else self.vocabulary.pad
            dense_targets = torch.full_like(mask, filler, dtype=torch.long)
            dense_targets[mask] = targets
            return weights + self.emission.log_prob_by_source(hidden.values, dense_targets)[mask]
        values = hidden.values[mask]
        rows, components = values.shape[:2]
        repeated = targets[:, None].expand(rows, components).reshape(-1)
        log_probs = self.emission.log_prob(values.flatten(0, 1), repeated)
        return weights + log_probs.view(rows, components)

    @torch.no_grad()
    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        """Internal values of the components, and the posterior over mixture components if any."""
        view = self.objective.view(batch)
        hidden = self.backbone(view)
        captures = {
            **self.backbone.capture_internals(view),
            **self.emission.capture_internals(hidden),
            **(
                {} if self.sampled_loss is None else self.sampled_loss.capture_internals(self, view)
            ),
            **self.objective.capture_internals(self, batch),
        }
        if hidden.log_weights is None:
            return captures
        mask = prediction_mask(view)
        assert view.prediction_view.targets is not None
        joint = self._component_log_probs(hidden, mask, view.prediction_view.targets[mask])
        posterior = torch.zeros_like(hidden.log_weights)
        posterior[mask] = torch.softmax(joint, dim=-1).to(posterior.dtype)
        sources = self.backbone.output_kind == "sources"
        captures["posterior"] = Capture(
            values=posterior,
            axes=("batch", "time", "source" if sources else "choice"),
            caption="For each predicted token, the posterior over the mixture's components.",
            bounds=UNIT_INTERVAL,
        )
        return captures

    def loss(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> tuple[Loss, State | None]:
        sampled = self.sampled_loss
        network = self if sampled is None else SampledLossNetwork(self, sampled, generator)
        return self.objective.loss(network, batch, state=state, generator=generator)

    def held_out_loss(
        self, batch: Batch, *, state: State | None, generator: torch.Generator | None
    ) -> tuple[Loss, State | None]:
        """By the full softmax, whatever the training loss, so that systems are comparable."""
        if self.sampled_loss is None:
            return self.loss(batch, state=state, generator=generator)
        return self.objective.loss(self, batch, state=state, generator=generator)

    def log_prob(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> LogProbs:
        """The objective's own log-probability of each sequence; see its `kind`."""
        return self.objective.log_prob(self, batch, state=state, generator=generator)
