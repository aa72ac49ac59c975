"""Next token given a source: what a translator is trained for."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch

from lmlab.core.batch import Batch
from lmlab.core.kinds import Kind
from lmlab.core.parts import Network
from lmlab.core.protocols import LogProbs
from lmlab.core.state import State
from lmlab.core.view import View, left_to_right
from lmlab.core.visibility import Full
from lmlab.core.vocabulary import Vocabulary
from lmlab.core.writing import SourceObjective


class NextTokenGivenSource(SourceObjective):
    """log p(s | x) = Σ_t log p(s_t | s_<t, x): the encoder reads x whole, the decoder writes s.

    A text that is given nothing is written beside an empty source, <s> </s>.
    """

    kind: ClassVar[Kind] = "exact"

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.vocabulary = vocabulary

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        source = self.source_view(batch.condition, len(batch), batch.tokens.device)
        return replace(source, decoder=left_to_right(batch))

    def source_view(self, condition: Batch | None, rows: int, device: torch.device) -> View:
        if condition is None:
            empty = [[i for i in (self.vocabulary.start, self.vocabulary.end) if i is not None]]
            condition = Batch.from_sequences(empty * rows, pad=self.vocabulary.pad).to(device)
        return View(inputs=condition.tokens, lengths=condition.lengths, visibility=Full())

    def opening(self) -> tuple[int, ...]:
        return (self.vocabulary.opening,)

    def log_prob(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        predictions = network.target_log_probs(self.view(batch, generator=generator))
        return LogProbs(per_token=predictions.spread(), kind=self.kind)
