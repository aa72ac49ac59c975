"""Next-token prediction (causal language modelling)."""

from __future__ import annotations

from typing import ClassVar

import torch

from lmlab.core.batch import Batch
from lmlab.core.parts import Network, Objective
from lmlab.core.protocols import LogProbs
from lmlab.core.score import ScoreKind
from lmlab.core.state import State
from lmlab.core.view import View, causal_view


class NextToken(Objective):
    """Causal LM: log p(s) = Σ_t log p(s_t | s_<t); maximum likelihood, left to right.

    Inputs are the tokens at positions 0 … T-2, targets those at 1 … T-1; position 0 (the start
    token, or the last token of the previous segment) is context only.
    """

    kind: ClassVar[ScoreKind] = "exact"

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
