"""Training by a contrast: targets told from a few other tokens, in the place of a softmax's loss.

It stands between a network and its objective, so that any objective that asks for tokens one by one
is trained by it: what is shown, asked and weighed stays the objective's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lmlab.core.capture import Capture
from lmlab.core.parts import Backbone, Emission, HiddenStates, Network, Predictions
from lmlab.core.state import State
from lmlab.core.view import View


class SampledLoss(nn.Module):
    """What is lost at each target of a view in training, where it is not -log p(target)."""

    def check_parts(self, backbone: Backbone, emission: Emission) -> None:
        """A UserError where such a network can't be trained by it."""
        raise TypeError(f"{type(self).__name__} does not define check_parts")

    def setup_data(
        self, network: Network, tokens: NDArray[np.generic], offsets: NDArray[np.int64]
    ) -> None:
        """Shown the training split before training: see `System.setup_data`."""
        return

    def predictions(
        self,
        network: Network,
        view: View,
        hidden: HiddenStates,
        *,
        generator: torch.Generator | None = None,
    ) -> Predictions:
        """Minus the loss at each of a view's targets, where log-probabilities would stand."""
        raise TypeError(f"{type(self).__name__} does not define predictions")

    def capture_internals(self, network: Network, view: View) -> dict[str, Capture]:
        """Inner values worth a picture, by name."""
        return {}


@dataclass(frozen=True, eq=False)
class SampledLossNetwork:
    """A network as an objective's loss sees it while a contrast trains it."""

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
        self, hidden: HiddenStates, places: Tensor, own: Tensor, shared: Tensor | None = None
    ) -> Tensor:
        return self.network.scores(hidden, places, own, shared)

    def initialise_logits(self, log_probs: Tensor) -> None:
        self.network.initialise_logits(log_probs)
