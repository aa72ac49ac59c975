"""Systems of parts: backbone × output layer × training objective; `Assembly` over tokens."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.capture import UNIT_INTERVAL, Capture
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.parts import (
    Backbone,
    CandidateLogits,
    Emission,
    HiddenStates,
    Objective,
    OutputLayer,
    Predictions,
    TrainingObjective,
    prediction_mask,
)
from lmlab.core.prefix_sharing import build_prefix_index
from lmlab.core.protocols import LogProbs
from lmlab.core.sampled_loss import SampledLoss, SampledLossNetwork
from lmlab.core.state import State
from lmlab.core.system import TrainableSystem
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary


class ComposedSystem(TrainableSystem):
    """backbone × output layer × training objective."""

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        backbone: Backbone,
        emission: OutputLayer,
        objective: TrainingObjective,
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
        self.fitting = fitting

    @property
    def window(self) -> int | None:
        """The backbone's positions, without those that the objective's framing takes."""
        positions = self.backbone.max_positions
        return None if positions is None else positions - self.objective.extra_positions

    @property
    def segment_length(self) -> int | None:
        return self.backbone.segment_length

    @property
    def memory_length(self) -> int | None:
        return self.backbone.memory_length

    def lengthening_hint(self, tokens: int) -> str:
        positions = self.backbone.max_positions
        if positions is None:
            return super().lengthening_hint(tokens)
        return f"train it with --set length={positions + tokens}"

    @property
    def loss_is_comparable(self) -> bool:
        return self.objective.loss_is_comparable

    @property
    def cpu_tokens_at_once(self) -> int | None:
        return self.backbone.cpu_tokens_at_once

    @property
    def needs_mixed_lengths(self) -> bool:
        return self.objective.needs_mixed_lengths

    def begin_step(self, step: int) -> None:
        self.objective.begin_step(step)

    def setup_data(self, tokens: NDArray[np.generic], offsets: NDArray[np.int64]) -> None:
        self.objective.setup_data(self, tokens, offsets)

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions:
        """Log-probabilities of a view's targets."""
        return self.predict(view, self.hidden(view, state))

    @abstractmethod
    def predict(self, view: View, hidden: HiddenStates) -> Predictions:
        """Log-probabilities of a view's targets, given its hidden states."""

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
                names = [kind.__name__ for kind in self.backbone.supported_masks]
                raise UserError(
                    f"{type(self.backbone).__name__} supports attention masks of kind "
                    f"{' or '.join(names) or 'none (it declares no supported_masks)'}, but this "
                    f"objective needs {type(part.attention_mask).__name__}."
                )

    def scores(
        self, hidden: HiddenStates, mask: Tensor, candidates: Tensor, shared: Tensor | None = None
    ) -> Tensor:
        """(N, C + K) unnormalised token logits: see `CandidateLogits.scores`."""
        assert isinstance(self.emission, CandidateLogits) and hidden.log_weights is None
        return self.emission.scores(hidden.values[mask], candidates, shared)

    def initialise_logits(self, log_probs: Tensor) -> None:
        assert isinstance(self.emission, CandidateLogits)
        self.emission.initialise_logits(log_probs)

    @torch.no_grad()
    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        """Internal values of the components."""
        view = self.objective.view(batch)
        return self._capture_parts(batch, view, self.backbone(view))

    def _capture_parts(self, batch: Batch, view: View, hidden: HiddenStates) -> dict[str, Capture]:
        return {
            **self.backbone.capture_internals(view),
            **self.emission.capture_internals(hidden),
            **self.objective.capture_internals(self, batch),
        }

    def loss(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> tuple[Loss, State | None]:
        return self.objective.loss(self, batch, state=state, generator=generator)


class Assembly(ComposedSystem):
    """backbone × emission × objective, optionally trained with a sampled loss."""

    emission: Emission
    objective: Objective
    predicts_by_hidden_state: ClassVar[bool] = True
    """Whether the distribution at a position depends on its hidden state alone (`distributions`);
    not where distributions of whole texts are mixed, or source tokens are copied."""

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        backbone: Backbone,
        emission: Emission,
        objective: Objective,
        fitting: str = "gradient",
    ) -> None:
        super().__init__(
            vocabulary=vocabulary,
            backbone=backbone,
            emission=emission,
            objective=objective,
            fitting=fitting,
        )
        self.sampled_loss: SampledLoss | None = None

    def set_sampled_loss(self, sampled_loss: SampledLoss) -> None:
        """Replace the log-probabilities in the objective's training loss by a sampled loss.

        log_prob does not change. Raises a UserError if these parts can't be trained so.
        """
        self.objective.check_sampled_loss()
        sampled_loss.check_parts(self.backbone, self.emission)
        self.sampled_loss = sampled_loss

    @property
    def loss_is_comparable(self) -> bool:
        return self.sampled_loss is None and super().loss_is_comparable

    def setup_data(self, tokens: NDArray[np.generic], offsets: NDArray[np.int64]) -> None:
        super().setup_data(tokens, offsets)
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

    def predict(self, view: View, hidden: HiddenStates) -> Predictions:
        """Log-probabilities of a view's targets, given its hidden states."""
        mask = prediction_mask(view)
        assert view.prediction_view.targets is not None
        log_probs = self._log_prob_at(hidden, mask, view.prediction_view.targets[mask])
        return Predictions(log_probs=log_probs, target_mask=mask, state=hidden.state)

    def distributions(self, view: View, hidden: HiddenStates) -> Tensor:
        """(N, V) log-probabilities of all tokens at the N targets of a view, in row-major order."""
        assert self.predicts_by_hidden_state, f"{type(self).__name__} has no such distributions"
        mask = prediction_mask(view)
        if hidden.log_weights is None:
            return self.emission.log_probs(hidden.values[mask])
        weights = hidden.log_weights[mask]
        if self.backbone.output_kind == "sources":
            by_source = self.emission.log_probs(hidden.values)[mask.nonzero()[:, 0]]
        else:
            by_source = self.emission.log_probs(hidden.values[mask])
        return torch.logsumexp(weights[..., None] + by_source, dim=-2)

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
        captures = self._capture_parts(batch, view, hidden)
        if self.sampled_loss is not None:
            captures |= self.sampled_loss.capture_internals(self, view)
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
        if self.sampled_loss is None:
            return super().loss(batch, state=state, generator=generator)
        network = SampledLossNetwork(self, self.sampled_loss, generator)
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
