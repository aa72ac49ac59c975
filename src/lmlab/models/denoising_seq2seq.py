"""Denoising encoder-decoders (MASS, BART): the decoder generates what the source has masked."""

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
"""Minimum beam size of a search for the most probable spans."""


class MASS(EncoderDecoderLM):
    """MASS (Song et al. 2019): the decoder generates a masked span of known length."""

    objective: MASSObjective
    one_span: ClassVar[bool] = True
    """The masked positions of a text must be adjacent."""

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
    """Exact joint of a span: log p(a_1 … a_k | text) = Σ_i log p(a_i | a_<i, text with k masks)."""

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
        """(N,) the most probable tokens of each row by beam search."""
        return most_probable_fillings(self, len(self.batch), self.masked.device)

    def ranked(self, row: int, count: int) -> list[RankedFilling]:
        """The most probable spans of one row by beam search.

        A rank is proven where no pruned hypothesis, whose score bounds those of all its
        continuations, was more probable.
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
    """Denoising encoder-decoder (BART): corrupted source in, original text out."""

    objective: DenoisingObjective
    # The training loss: unconditional generation may get worse while denoising still improves.
    validation_metric = "loss"

    def setup_tokenizer(self, tokenizer: TokenizerProtocol) -> None:
        self.objective.setup_tokenizer(tokenizer)

    def encode_tokens(self, batch: Batch) -> Tensor:
        """(B, T, W) the encoder's hidden states; zero at a start token that it is not given."""
        values = super().encode_tokens(batch)
        return F.pad(values, (0, 0, batch.tokens.shape[1] - values.shape[1], 0))


class DenoisingPointerGenerator(PointerGenerator, DenoisingSeq2Seq):
    """Denoising pointer-generator: it may copy tokens of the corrupted source."""


class InfillingDenoisingSeq2Seq(DenoisingSeq2Seq):
    """Denoising encoder-decoder that restores whole texts, and so infills blanks of any length."""

    def infill_decoder(self, batch: Batch) -> TemplateConstrainedDecoder:
        """The decoder that regenerates the texts of a batch; each mask token is a blank."""
        return TemplateConstrainedDecoder(self, batch, mask=self.objective.special_tokens.mask)
