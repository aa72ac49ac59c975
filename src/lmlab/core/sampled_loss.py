"""Sampled loss interface, and a network wrapper that gives objectives its loss in place of log p.

A sampled loss stands between a network and its objective, so it works with any objective that
predicts single tokens; inputs, targets and weights stay the objective's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lmlab.core.capture import Capture
from lmlab.core.parts import Backbone, HiddenStates, Network, OutputLayer, Predictions
from lmlab.core.state import State
from lmlab.core.view import View


class SampledLoss(nn.Module, ABC):
    """Training loss at each target of a view, in place of -log p(target)."""

    @abstractmethod
    def check_parts(self, backbone: Backbone, emission: OutputLayer) -> None:
        """Raise a UserError if such a network can't be trained by it."""

    def setup_data(
        self, network: Network, tokens: NDArray[np.generic], offsets: NDArray[np.int64]
    ) -> None:
        """Called with the training split before training: see `System.setup_data`."""

    @abstractmethod
    def predictions(
        self,
        network: Network,
        view: View,
        hidden: HiddenStates,
        *,
        generator: torch.Generator | None = None,
    ) -> Predictions:
        """Minus the loss at each of a view's targets, in place of log-probabilities."""

    def capture_internals(self, network: Network, view: View) -> dict[str, Capture]:
        """Internal values to plot, by name."""
        return {}


@dataclass(frozen=True, eq=False)
class SampledLossNetwork:
    """The network seen by an objective's loss when trained with a sampled loss."""

    network: Network
    contrast: SampledLoss
    generator: torch.Generator | None

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions:
        hidden = self.hidden(view, state)
        return replace(self.predict(view, hidden), state=hidden.state)

    def hidden(self, view: View, state: State | None = None) -> HiddenStates:
        return self.network.hidden(view, state)

    def predict(self, view: View, hidden: HiddenStates) -> Predictions:
        return self.contrast.predictions(self.network, view, hidden, generator=self.generator)

    def scores(
        self, hidden: HiddenStates, mask: Tensor, candidates: Tensor, shared: Tensor | None = None
    ) -> Tensor:
        return self.network.scores(hidden, mask, candidates, shared)

    def initialise_logits(self, log_probs: Tensor) -> None:
        self.network.initialise_logits(log_probs)
