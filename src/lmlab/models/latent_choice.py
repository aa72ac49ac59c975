"""Autoregressive models with a latent choice per position (parents, slots), marginalised."""

from __future__ import annotations

from lmlab.backbones.latent_choice import (
    LatentChoiceBackbone,
    concatenate_predictions,
    split_view,
)
from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.parts import Predictions
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.models.causal_lm import AutoregressiveLM

MAX_LENGTH = 128
"""Positions per forward pass: memory is quadratic in it."""


class LatentChoiceLM(AutoregressiveLM):
    """Autoregressive model with a latent choice at each position, described by its backbone.

    Long texts are processed in segments without changing any result: the state carries all context.
    """

    backbone: LatentChoiceBackbone

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions:
        if view.inputs.shape[1] <= MAX_LENGTH:
            return super().target_log_probs(view, state)
        parts = []
        for stretch in split_view(view, MAX_LENGTH):
            parts.append(super().target_log_probs(stretch, state))
            state = parts[-1].state
        return concatenate_predictions(parts)

    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        captures = super().capture_internals(batch)
        posterior = captures.pop("posterior", None)
        return (
            captures
            if posterior is None
            else {
                **captures,
                **self.backbone.explain(posterior.values),
            }
        )
