"""Lower bound: train on what never exceeds the log-probability, score by the exact one."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.parts import Network, prediction_mask
from lmlab.core.state import State
from lmlab.core.system import Assembly
from lmlab.objectives.next_token import NextToken


@runtime_checkable
class LowerBoundedEmission(Protocol):
    """An emission whose log-probability has a cheap lower bound."""

    def log_bound(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(N,) never above `log_prob` of N targets given N hidden states (N, W)."""
        ...


class LowerBoundObjective(NextToken):
    """Maximise Σ_t bound(s_t | s_<t) ≤ Σ_t log p(s_t | s_<t); log_prob is the right-hand side.

    The emission gives both. The loss is minus the bound, so a training curve lies above the
    validation's, which is exact.
    """

    def loss(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        assert isinstance(network, Assembly), "the bound is the emission's"
        emission = network.emission
        if not isinstance(emission, LowerBoundedEmission):
            raise UserError(
                f"the lower bound needs an emission that has one, and {type(emission).__name__} "
                "has none; train on next-token."
            )
        view = self.view(batch, generator=generator)
        hidden, places = network.backbone(view, state), prediction_mask(view)
        assert view.targets is not None
        lost = -emission.log_bound(hidden.values[places], view.targets[places])
        count = torch.tensor(float(lost.numel()), device=lost.device)
        return Loss(lost.sum(), count), hidden.state
