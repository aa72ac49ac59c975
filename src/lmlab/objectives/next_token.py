"""Next token: predict every token from those before it."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F

from lmlab.core.batch import Batch
from lmlab.core.beginnings import Beginnings
from lmlab.core.kinds import Kind
from lmlab.core.parts import Network, Objective
from lmlab.core.protocols import LogProbs
from lmlab.core.state import State
from lmlab.core.view import NO_TARGET, View, left_to_right


class NextToken(Objective):
    """log p(s) = Σ_t log p(s_t | s_<t): maximum likelihood, left to right.

    The tokens at places 0 … T-2 are shown and those at 1 … T-1 predicted; place 0 (the start
    symbol, or the last token of the text before) is context alone.
    """

    kind: ClassVar[Kind] = "exact"

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        return left_to_right(batch)

    def log_prob(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        view = self.view(batch, generator=generator)
        assert view.targets is not None
        alike = None if state is not None else Beginnings.of(batch.tokens, batch.lengths)
        predictions = network.target_log_probs(view if alike is None else once(view, alike), state)
        per_token = predictions.spread()
        if alike is not None:
            per_token = alike.spread(alike.gather(F.pad(per_token, (1, 0))))[:, 1:]
            per_token = per_token.masked_fill(view.targets == NO_TARGET, 0.0)
        return LogProbs(per_token=per_token, kind=self.kind, state=predictions.state)


def once(view: View, alike: Beginnings) -> View:
    """The same asked once where texts begin alike: a token after the same tokens is as likely."""
    assert view.targets is not None
    return replace(view, targets=view.targets.masked_fill(~alike.at_first[:, 1:], NO_TARGET))
