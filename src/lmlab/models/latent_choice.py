"""TODO"""

from __future__ import annotations

from lmlab.backbones.latent_choice import (
    Latent,
    joined,
    stretches,
)
from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.parts import Predictions
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.models.causal_lm import LeftToRight
from lmlab.zoo._latent_choice import LONGEST


class LatentLeftToRight(LeftToRight):
    """A left-to-right system whose backbone tells what its latent choice stands for.

    Long text is read in stretches, which changes no number: the state carries all that is seen.
    """

    backbone: Latent

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions:
        if view.inputs.shape[1] <= LONGEST:
            return super().target_log_probs(view, state)
        parts = []
        for stretch in stretches(view, LONGEST):
            parts.append(super().target_log_probs(stretch, state))
            state = parts[-1].state
        return joined(parts)

    def reveal(self, batch: Batch) -> dict[str, Capture]:
        captures = super().reveal(batch)
        posterior = captures.pop("posterior", None)
        return (
            captures
            if posterior is None
            else {
                **captures,
                **self.backbone.explain(posterior.values),
            }
        )
