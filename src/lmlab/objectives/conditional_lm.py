"""Conditional language modelling (sequence to sequence): next token given a source."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.parts import Network, prediction_mask
from lmlab.core.protocols import LogProbs
from lmlab.core.score_kind import ScoreKind
from lmlab.core.state import State
from lmlab.core.system import Assembly
from lmlab.core.view import View, causal_view
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.objective_interfaces import Seq2SeqObjective


class ConditionalLM(Seq2SeqObjective):
    """Seq2seq: log p(s | x) = Σ_t log p(s_t | s_<t, x); x is encoded, s is decoded.

    A text without a source is conditioned on the empty source, <s> </s>. `source` is the source
    vocabulary, where it differs. With label `smoothing` ε (Szegedy et al. 2016) the training loss
    is (1 - ε) times the target's plus ε times the mean over all tokens; evaluation is unaffected.
    """

    kind: ClassVar[ScoreKind] = "exact"

    def __init__(
        self, vocabulary: Vocabulary, *, source: Vocabulary | None = None, smoothing: float = 0.0
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.source = source or vocabulary
        self.label_smoothing = smoothing

    def check_sampled_loss(self) -> None:
        if self.label_smoothing:
            raise UserError(
                "label smoothing needs the log-probabilities of all tokens, which a sampled "
                "loss does not compute; use --set label_smoothing=0, or remove --objective."
            )

    def loss(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        if self.label_smoothing == 0 or not self.training:
            return super().loss(network, batch, state=state, generator=generator)
        assert isinstance(network, Assembly)
        view = self.view(batch, generator=generator)
        places = prediction_mask(view)
        assert view.prediction_view.targets is not None
        values, targets = (
            network.hidden(view, state).values[places],
            view.prediction_view.targets[places],
        )
        exact, mean = network.emission.log_prob_and_mean(values, targets)
        lost = -(1 - self.label_smoothing) * exact - self.label_smoothing * mean
        return Loss(lost.sum(), torch.tensor(float(lost.numel()), device=lost.device)), None

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        source = self.source_view(batch.condition, len(batch), batch.tokens.device)
        return replace(source, decoder=causal_view(batch))

    def source_view(self, condition: Batch | None, rows: int, device: torch.device) -> View:
        if condition is None:
            empty = [[i for i in (self.source.start, self.source.end) if i is not None]]
            condition = Batch.collate(empty * rows, pad=self.source.pad).to(device)
        return View(inputs=condition.tokens, lengths=condition.lengths, attention_mask=FullMask())

    def decoder_prefix(self) -> tuple[int, ...]:
        return (self.vocabulary.bos,)

    def log_prob(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        predictions = network.target_log_probs(self.view(batch, generator=generator))
        return LogProbs(per_token=predictions.to_dense(), kind=self.kind)
