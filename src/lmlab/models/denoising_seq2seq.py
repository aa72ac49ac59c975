"""MASS as a system that fills in: its decoder generates a masked span of given length."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.joint_distribution import (
    RankedFilling,
    most_probable_fillings,
)
from lmlab.core.protocols import TokenizerProtocol
from lmlab.models.pointer_generator import PointerGenerator
from lmlab.models.seq2seq import EncoderDecoderLM
from lmlab.models.template_constrained_decoding import TemplateConstrainedDecoder
from lmlab.objectives.denoising_base import (
    DenoisingObjective,
)
from lmlab.objectives.masked_span import MASSObjective

SPAN_BEAM = 64
"""Hypotheses that a search for the likeliest spans keeps at least."""


class MASS(EncoderDecoderLM):
    """Encoder-decoder whose decoder generates what the encoder sees masked (Song et al. 2019)."""

    objective: MASSObjective
    one_span: ClassVar[bool] = True
    """The masks of a text that are filled in must be adjacent."""

    def joint_fill(self, batch: Batch, masked: Tensor) -> SpanDistribution:
        """The joint distribution of the span of masks in each row of the batch, (B, T) bool."""
        size = masked.sum(1)
        first = masked.long().argmax(1).clamp(min=1)
        place = torch.arange(masked.shape[1], device=masked.device)
        inside = (place >= first[:, None]) & (place < (first + size)[:, None])
        if not torch.equal(inside, masked):
            raise UserError(
                "this system generates one span per text, so its masks must be adjacent; mask "
                "one span, or use a system that fills positions apart (bert, span-joint)."
            )
        return SpanDistribution(self, batch, masked, first, size)


@dataclass(frozen=True, eq=False)
class SpanDistribution:
    """log p(a_1 … a_k | text) = Σ_i log p(a_i | a_<i, text with k masks), exact: a `Joint`."""

    system: MASS
    batch: Batch
    masked: Tensor
    """(B, T) bool: one span in each row."""
    first: Tensor
    """(B,) its first position."""
    size: Tensor
    """(B,) its number of tokens."""

    def log_prob(self, tokens: Tensor) -> Tensor:
        """(B,) log-probability of the spans whose tokens (N,) are given in reading order."""
        filled = self.batch.tokens.masked_scatter(self.masked, tokens)
        batch = replace(self.batch, tokens=filled)
        view = self.system.objective.fill_view(batch, self.masked, self.first, self.size)
        return self.system.target_log_probs(view).to_dense().sum(1)

    def sample(self, *, generator: torch.Generator | None = None) -> Tensor:
        """(N,) tokens sampled one after another."""
        rows = torch.arange(len(self.batch), device=self.masked.device)
        filled = self.batch.tokens.clone()
        for turn in range(int(self.size.max()) if len(rows) else 0):
            drawn = Categorical(self._next(rows, filled, turn)).sample(generator=generator)
            going = turn < self.size
            filled[rows[going], self.first[going] + turn] = drawn[going]
        return filled[self.masked]

    def best(self) -> Tensor:
        """(N,) the likeliest tokens that a beam search finds for each row."""
        return most_probable_fillings(self, len(self.batch), self.masked.device)

    def ranked(self, row: int, count: int) -> list[RankedFilling]:
        """The likeliest spans of one row by beam search.

        One is proven to be in its place where no hypothesis that was dropped, whose score bounds
        those of all its continuations, was likelier.
        """
        width, dropped = max(SPAN_BEAM, count), -math.inf
        first, size = int(self.first[row]), int(self.size[row])
        filled = self.batch.tokens[row : row + 1].clone()
        totals = torch.zeros(1, dtype=torch.float64, device=filled.device)
        for turn in range(size):
            rows = torch.full((len(filled),), row, device=filled.device)
            log_probs = self._next(rows, filled, turn).double()
            scores = (totals[:, None] + log_probs).flatten()
            best = scores.topk(min(width + 1, int((scores > -math.inf).sum())))
            if len(best.values) > width:
                dropped = max(dropped, float(best.values[width]))
            kept, totals = best.indices[:width], best.values[:width]
            filled = filled[kept // log_probs.shape[1]]
            filled[:, first + turn] = kept % log_probs.shape[1]
        spans = filled[:, first : first + size].tolist()
        return [
            RankedFilling(tokens=tuple(span), log_prob=total, proven=total >= dropped)
            for span, total in list(zip(spans, totals.tolist(), strict=True))[:count]
        ]

    def _next(self, rows: Tensor, filled: Tensor, turn: int) -> Tensor:
        """(R, V) log-probabilities of token `turn` of the spans, for texts (R, T) of these rows."""
        masked, first = self.masked[rows], self.first[rows]
        batch = replace(self.batch.select(rows.tolist()), tokens=filled)
        size = self.size[rows].clamp(max=turn + 1)
        view = self.system.objective.fill_view(batch, masked, first, size)
        hidden = self.system.hidden(view).values
        here = (size - 1).clamp(min=0)
        values = hidden[torch.arange(len(rows), device=here.device), here]
        log_probs: Tensor = self.system.emission.log_probs(values)
        return log_probs


class DenoisingSeq2Seq(EncoderDecoderLM):
    """An encoder-decoder that is trained to write what its source hides."""

    objective: DenoisingObjective
    # What it is trained for: texts that are written from nothing may get worse while others are
    # restored better and better.
    validation_metric = "loss"

    def setup_tokenizer(self, tokenizer: TokenizerProtocol) -> None:
        self.objective.setup_tokenizer(tokenizer)

    def encode_tokens(self, batch: Batch) -> Tensor:
        """(B, T, W) the encoder's hidden states; zero at a start symbol that it is not shown."""
        values = super().encode_tokens(batch)
        return F.pad(values, (0, 0, batch.tokens.shape[1] - values.shape[1], 0))


class DenoisingPointerGenerator(PointerGenerator, DenoisingSeq2Seq):
    """A system that restores, and may copy words of its source."""


class InfillingDenoisingSeq2Seq(DenoisingSeq2Seq):
    """A system that restores whole texts, and so fills blanks of any length in them."""

    def infill_decoder(self, batch: Batch) -> TemplateConstrainedDecoder:
        """What rewrites the texts of a batch, in which each mask symbol is a blank."""
        return TemplateConstrainedDecoder(self, batch, mask=self.objective.special_tokens.mask)
