"""Mixture emission with K fixed states and a softmax over the transformed hidden state."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.capture import UNIT_INTERVAL, Capture
from lmlab.core.parts import Emission, HiddenStates
from lmlab.emissions.mixture import MixtureStates
from lmlab.layers.softmax_log_prob import linear_log_prob


class RotatedMixture(Emission):
    """Mixture of fixed states and a softmax of R h, with K + 1 components.

        p(s | h) = Σ_{z<K} P(z | h) P(s | z) + P(K | h) softmax_s(e_s · R h)

    A fixed state retains nothing of h but its index, the last component all of h. R is any matrix,
    and the output vectors e are those of the states. `dropout` is applied to the hidden state.
    Hidden (…, W); cost that of a mixture and of a softmax, N · W · V.
    """

    input_kinds: ClassVar[frozenset[str]] = frozenset({"vectors", "components", "sources"})

    def __init__(self, width: int, states: MixtureStates, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.states = states
        self.choose = nn.Linear(width, states.count + 1)
        self.rotate = nn.Linear(width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def _parts(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(…, K + 1) log-weights, the rotation's last, and (…, W) R h."""
        dropped = self.dropout(hidden)
        return F.log_softmax(self.choose(dropped), dim=-1), self.rotate(dropped)

    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        log_weights, turned = self._parts(hidden)
        outputs, never = self.states.factors()[0], self.states.never_predicted
        moving = linear_log_prob(turned, outputs, never, targets)
        each = torch.cat([self.states.log_prob(targets), moving[:, None]], dim=1)
        return torch.logsumexp(log_weights + each, dim=1)

    def log_probs(self, hidden: Tensor) -> Tensor:
        log_weights, turned = self._parts(hidden)
        outputs, never = self.states.factors()[0], self.states.never_predicted
        moving = torch.softmax(F.linear(turned, outputs, never).double(), dim=-1)
        weights = log_weights.double().exp()
        mixed = weights[..., :-1] @ self.states.log_table().double().exp().t()
        mixed = mixed + weights[..., -1:] * moving
        return mixed.masked_fill(never.isinf(), 1.0).log().to(hidden.dtype) + never

    def capture_internals(self, hidden: HiddenStates) -> dict[str, Capture]:
        weights = self._parts(hidden.values)[0].exp()
        return {
            **self.states.capture_internals(),
            "mixture use": Capture(
                values=weights.flatten(0, -2).mean(0),
                axes=("state",),
                caption="Share of all predictions that each state carries; the last is the "
                "rotation, and a state near zero is unused.",
                sums_to_one="state",
            ),
            "share of the rotation": Capture(
                values=weights[..., -1],
                axes=("batch", "time"),
                caption="The probability that each prediction rotates the previous word's vector "
                "instead of choosing a fixed state.",
                bounds=UNIT_INTERVAL,
            ),
        }
