"""Lower-bound training: maximise a bound on the log-likelihood, evaluate the exact one."""

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
        """(N,) lower bound on the log-probability of N targets given N hidden states (N, W)."""
        ...


class LowerBoundObjective(NextToken):
    """Lower bound: maximise Σ_t bound(s_t | s_<t) ≤ Σ_t log p(s_t | s_<t), which is log_prob.

    The emission gives both. The loss is minus the bound, so the training curve lies above the exact
    validation curve.
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
                "the lower-bound objective needs an emission with a lower bound, got "
                f"{type(emission).__name__}; use --objective next-token."
            )
        view = self.view(batch, generator=generator)
        hidden, places = network.backbone(view, state), prediction_mask(view)
        assert view.targets is not None
        lost = -emission.log_bound(hidden.values[places], view.targets[places])
        count = torch.tensor(float(lost.numel()), device=lost.device)
        return Loss(lost.sum(), count), hidden.state
