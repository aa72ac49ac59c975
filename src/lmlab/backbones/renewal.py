"""Renewal: a token is generated from an earlier token, or the text restarts."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.backbones.latent_choice import LatentChoiceBackbone
from lmlab.backbones.latent_parents import LatentParents
from lmlab.core.capture import Capture
from lmlab.core.parts import HiddenStates
from lmlab.core.state import State, TensorState
from lmlab.core.view import View


class Renewal(LatentChoiceBackbone):
    """Mixture of latent parents and a restart: λ Q + (1 - λ) Σ_a P(a | i) W(· | s_a).

    Q = softmax(e · q) is the restart distribution, independent of context. λ is 1/2, or learned
    from there with `learned`. Sources (B, 1 + S · R, W), q first; the cost is that of the parents.
    """

    output_kind: ClassVar[str] = "sources"

    def __init__(self, parents: LatentParents, *, learned: bool = False) -> None:
        super().__init__()
        self.parents = parents
        self.width = parents.width
        self.fresh = nn.Parameter(torch.randn(self.width) * self.width**-0.5)
        if learned:
            self.balance = nn.Parameter(torch.zeros(2))
        else:
            self.register_buffer("balance", torch.zeros(2), persistent=False)

    def initial_state(self, rows: int) -> TensorState:
        return self.parents.initial_state(rows)

    def log_balance(self) -> Tensor:
        """(2,) log λ and log(1 - λ)."""
        return F.log_softmax(self.balance, dim=0)

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        below = self.parents(view, state)
        afresh, onward = self.log_balance()
        (rows, time), weights = view.inputs.shape, below.log_weights
        assert weights is not None
        return HiddenStates(
            values=torch.cat([self.fresh.expand(rows, 1, -1), below.values], dim=1),
            log_weights=torch.cat([afresh.expand(rows, time, 1), onward + weights], dim=2),
            state=below.state,
        )

    def capture_internals(self, view: View) -> dict[str, Capture]:
        captures = self.parents.capture_internals(view)
        captures["renewal weight"] = Capture(
            values=self.log_balance().exp(),
            axes=("choice",),
            caption="Prior probability that a token starts afresh (0) or follows from an earlier "
            "token (1).",
            sums_to_one="choice",
        )
        return captures

    def explain(self, posterior: Tensor) -> dict[str, Capture]:
        by_type = posterior[..., 1:].unflatten(-1, (-1, self.parents.types)).sum(-2)
        return {
            "posterior": Capture(
                values=torch.cat([posterior[..., :1], by_type], dim=-1),
                axes=("batch", "time", "choice"),
                caption="The posterior over what each token follows from: 0 is a fresh start, the "
                "others are the types of transition from an earlier token.",
                sums_to_one="choice",
            )
        }
