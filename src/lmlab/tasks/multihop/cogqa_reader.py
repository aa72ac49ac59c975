"""System 1 of CogQA: an encoder that points at next hops and answers, and says what it has read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.evaluation_mode import (
    device_of,
    evaluation_mode,
)
from lmlab.core.loss import Loss
from lmlab.core.protocols import EncodeTokens, require
from lmlab.core.state import State
from lmlab.core.system import System
from lmlab.data.collation import group_by_length
from lmlab.layers.cogqa_config import CogQAConfig
from lmlab.layers.span_pointers import (
    ANSWER_POINTER,
    HOP_POINTER,
    POINTER_COUNT,
    PointedSpan,
    best_spans,
    pointer_log_probs,
    pointer_loss,
)
from lmlab.layers.transformer_block import TransformerBlock
from lmlab.models.masked_lm import MaskedLM
from lmlab.tasks.multihop.multihop_rows import TASK
from lmlab.tasks.multihop.node_inputs import (
    SEPARATORS,
    NodeInput,
    require_end_token,
)

TOKENS_PER_BATCH = 8192


@dataclass(frozen=True, kw_only=True, eq=False)
class ReaderOutput:
    """What system 1 finds in some inputs."""

    log_probs: Tensor
    """(B, T, 4) of S_hop, E_hop, S_ans and E_ans."""
    allowed: Tensor
    """(B, T) the places of paragraphs."""
    semantics: Tensor
    """(B, W) what is known of each node: sem[x, question, clues]."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ExtractedSpans:
    """What system 1 finds in one input."""

    hops: list[PointedSpan]
    answers: list[PointedSpan]
    nothing: float
    """The probability that no answer stands there: that of place 0."""
    semantics: Tensor
    """(W,)"""


class CogQAReader(System):
    """Four pointers on an encoder's hidden states (Ding et al. 2019).

        P[i] = softmax_i(S · T_i),   sem[x] = the hidden state at place 0 of an earlier layer

    Question and clues are segment A, the paragraph B. An empty paragraph has nothing to point at,
    and still a meaning.
    """

    watched = "loss"

    def __init__(self, base: System, settings: CogQAConfig, *, dropout: float = 0.1) -> None:
        super().__init__()
        require(base, EncodeTokens, f"the task {TASK}")
        self.vocabulary, self.window = base.vocabulary, base.window
        self.base, self.settings = base, settings
        self.end = require_end_token(base.vocabulary)
        self.dropout = nn.Dropout(dropout)
        last, inner = self._encode(_nothing(base))
        self.pointers = nn.Linear(last.shape[-1], POINTER_COUNT, bias=False)
        self.width = int(inner.shape[-1])
        """Numbers of a node's meaning."""

    @property
    def longest(self) -> int:
        """Tokens of an input at most."""
        return 10**6 if self.window is None else self.window + 1

    def _parts(self, batch: Batch) -> Tensor:
        """(B, T) how many end symbols stand before each place: 0 question, 1 clues, 2 paragraph."""
        ended = batch.tokens.eq(self.end).long()
        return ended.cumsum(1) - ended

    def paragraph_mask(self, batch: Batch) -> Tensor:
        """(B, T) bool: the places of the paragraph."""
        words = batch.tokens != self.end
        return (self._parts(batch) == 2) & words & batch.mask()

    def _encode(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(B, T, W) hidden states of the last layer, and of the one that meanings are taken of."""
        base: Any = self.base
        with _noting(base) as layers:
            if isinstance(base, MaskedLM):
                nothing = torch.zeros_like(batch.tokens, dtype=torch.bool)
                segments = (self._parts(batch) >= 2).long()
                view = replace(base.objective.fill_view(batch, nothing), segments=segments)
                last = base.hidden(view).values
            else:
                last = base.encode_tokens(batch)
        return last, layers[self._layer(len(layers))] if layers else last

    def _layer(self, layers: int) -> int:
        """The place of the layer that meanings are taken of, among all of them."""
        asked = self.settings.semantics_layer or layers - 1
        return min(max(asked, 1), layers) - 1

    def read(self, batch: Batch) -> ReaderOutput:
        last, inner = self._encode(batch)
        allowed = self.paragraph_mask(batch)
        scores = self.pointers(self.dropout(last))
        return ReaderOutput(
            log_probs=pointer_log_probs(scores, allowed), allowed=allowed, semantics=inner[:, 0]
        )

    def loss(
        self,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        """Cross-entropy of the four pointers with the places in the batch's labels (B, 4, K)."""
        assert batch.labels is not None, "pointers need labels"
        return pointer_loss(self.read(batch).log_probs, batch.labels), None

    @torch.no_grad()
    def find(self, inputs: Sequence[NodeInput]) -> list[ExtractedSpans]:
        """Spans and meanings of some inputs, in their order."""
        found: list[ExtractedSpans | None] = [None] * len(inputs)
        for group in group_by_length([len(each.tokens) for each in inputs], TOKENS_PER_BATCH):
            tokens = [inputs[index].tokens for index in group]
            with evaluation_mode(self):
                batch = Batch.collate(tokens, self.vocabulary.pad)
                reading = self.read(batch.to(device_of(self)))
            for row, index in enumerate(group):
                found[index] = self._found(reading, row)
        return [each for each in found if each is not None]

    def _found(self, reading: ReaderOutput, row: int) -> ExtractedSpans:
        log_probs, allowed = reading.log_probs[row].cpu(), reading.allowed[row].cpu()
        hops, answers = (
            best_spans(
                log_probs[:, kind],
                log_probs[:, kind + 1],
                allowed,
                top=self.settings.starts,
                longest=self.settings.max_span_length,
            )
            for kind in (HOP_POINTER, ANSWER_POINTER)
        )
        return ExtractedSpans(
            hops=hops,
            answers=answers,
            nothing=float(log_probs[0, ANSWER_POINTER].exp()),
            semantics=reading.semantics[row].cpu(),
        )


@contextmanager
def _noting(base: nn.Module) -> Iterator[list[Tensor]]:
    """What comes out of the layers of a Transformer while it runs, one after another."""
    noted: list[Tensor] = []

    def note(_: nn.Module, __: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            noted.append(output)

    handles = [
        m.register_forward_hook(note) for m in base.modules() if isinstance(m, TransformerBlock)
    ]
    try:
        yield noted
    finally:
        for handle in handles:
            handle.remove()


def _nothing(base: System) -> Batch:
    """An input of no words, by which widths are found."""
    ends = [base.vocabulary.opening] + [require_end_token(base.vocabulary)] * SEPARATORS
    device = next(base.parameters()).device
    return Batch.collate([ends], base.vocabulary.pad).to(device)
