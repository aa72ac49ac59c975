"""Mixture of softmaxes (MoS): several projections of the hidden state, mixed as probabilities."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lmlab.core.capture import Capture
from lmlab.core.parts import Emission, HiddenStates
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax


class MixtureOfSoftmaxes(Emission):
    """Mixture of softmaxes (MoS, Yang et al. 2018, Breaking the Softmax Bottleneck).

        p(k | h) = Σ_m π_m(h) softmax_k(e_k · tanh(U_m h + a_m) + b_k),  π = softmax(C h + c)

    The log-probabilities of one softmax are a matrix of rank at most W + 1 over all contexts, those
    of a mixture are not. Unlike the fixed states of `MixtureEmission`, the M softmaxes depend on
    the hidden state, and each costs N · W · V. Hidden (…, W), log-probabilities (…, V).
    """

    input_kinds: ClassVar[frozenset[str]] = frozenset({"vectors", "components", "sources"})

    def __init__(
        self,
        width: int,
        count: int,
        vocabulary: Vocabulary,
        *,
        tied: nn.Embedding | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.count = count
        self.choose = nn.Linear(width, count)
        self.views = nn.Linear(width, count * width)
        self.softmax = Softmax(width, vocabulary, tied=tied)
        self.dropout = nn.Dropout(dropout)

    def _parts(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(…, M) log π and (…, M, W) the projections."""
        dropped = self.dropout(hidden)
        views = torch.tanh(self.views(dropped)).unflatten(-1, (self.count, -1))
        return F.log_softmax(self.choose(dropped), dim=-1), views

    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        log_weights, views = self._parts(hidden)
        # Activation checkpointing: logits are recomputed in the backward pass, one softmax at a
        # time; M times (N, V) would dominate memory.
        component_log_probs = [
            checkpoint(self.softmax.log_prob, view, targets, use_reentrant=False)
            for view in views.unbind(-2)
        ]
        return torch.logsumexp(log_weights + torch.stack(component_log_probs, dim=-1), dim=-1)

    def log_probs(self, hidden: Tensor) -> Tensor:
        log_weights, views = self._parts(hidden)
        never = self.softmax.never_predicted
        # log 0 has no gradient, so -inf is filled in afterwards.
        component_log_probs = self.softmax.log_probs(views).masked_fill(never.isinf(), 0.0)
        return torch.logsumexp(log_weights[..., None] + component_log_probs, dim=-2) + never

    def capture_internals(self, hidden: HiddenStates) -> dict[str, Capture]:
        log_weights, _ = self._parts(hidden.values)
        return {
            "mixture use": Capture(
                values=log_weights.exp().flatten(0, -2).mean(0),
                axes=("choice",),
                caption="Share of all predictions that each softmax carries; one near 1 means "
                "that a single softmax would do.",
                sums_to_one="choice",
                titles={"choice": "softmax"},
            )
        }
