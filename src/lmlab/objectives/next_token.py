"""Next-token prediction (causal language modelling), by likelihood or by a lower bound of it."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from lmlab.core.assembly import Assembly
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.parts import Network, Objective, prediction_mask
from lmlab.core.protocols import LogProbs
from lmlab.core.score import ScoreKind
from lmlab.core.state import State
from lmlab.core.view import View, causal_view
from lmlab.objectives.objective_interfaces import sum_losses


class NextToken(Objective):
    """Causal LM: log p(s) = Σ_t log p(s_t | s_<t); maximum likelihood, left to right.

    Inputs are the tokens at positions 0 … T-2, targets those at 1 … T-1; position 0 (the start
    token, or the last token of the previous segment) is context only.
    """

    kind: ClassVar[ScoreKind] = "exact"
    prediction_kind = "prefix"

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        return causal_view(batch)

    def log_prob(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        predictions = network.target_log_probs(self.view(batch, generator=generator), state)
        return LogProbs(per_token=predictions.to_dense(), kind=self.kind, state=predictions.state)


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

    prediction_kind = ""  # the bound is of the target alone

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
        hidden, target_mask = network.backbone(view, state), prediction_mask(view)
        assert view.targets is not None
        losses = -emission.log_bound(hidden.values[target_mask], view.targets[target_mask])
        return sum_losses(losses), hidden.state
