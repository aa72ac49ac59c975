"""Sentinel encoder-decoder (T5): whole texts, and infilling of spans masked by sentinels.

The decoder for infilling blanks of unknown length (`Infill`) is here too.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.view import View
from lmlab.models.causal_lm import DecodingState, FieldwiseState, split_answers
from lmlab.models.seq2seq import EncoderDecoderLM
from lmlab.objectives.text_to_text import TextToTextObjective


class SentinelSeq2Seq(EncoderDecoderLM):
    """T5-style encoder-decoder that generates a text, or the contents of a text's blanks.

    `peek` is over texts: the sentinels' probability is added to the end token's, since they end a
    span as well.
    """

    objective: TextToTextObjective
    validation_metric = "loss"

    def start(self, rows: int, *, condition: Batch | None = None) -> DecodingState:
        view = self.objective.source_view(condition, rows, next(self.parameters()).device)
        return self.start_decoder(view, self.objective.decoder_prefix(condition is not None))

    def start_decoder(self, view: View, tokens: Sequence[int]) -> DecodingState:
        """The state after the decoder was given some tokens, the same for all rows."""
        memory: Any = self.backbone.init_decoder(view)
        rows, device = len(view.inputs), view.inputs.device
        for token in tokens:
            state = self._step(memory, torch.full((rows,), token, device=device))
            memory = state.memory
        return state

    def peek(self, state: DecodingState) -> Categorical:
        log_probs = self.emission.log_probs(state.values)
        end = torch.full((len(log_probs),), self.objective.sentinels.end, device=log_probs.device)
        texts = self.objective.sentinels.merge_span_ends(end, log_probs)
        return Categorical(texts[:, : self.vocabulary.size])

    def encode(self, batch: Batch) -> Tensor:
        """(B, W) the mean of the encoder's hidden states over a text, without position 0."""
        values, mask = self.encode_tokens(batch), batch.targets_mask()[..., None]
        return (values * mask).sum(1) / mask.sum(1).clamp(min=1)

    def encode_tokens(self, batch: Batch) -> Tensor:
        """(B, T, W) the encoder's hidden states; zeros at position 0, which is not an input."""
        values = self.backbone.run_encoder(self.objective.encoder_view(batch))
        return torch.cat([torch.zeros_like(values[:, :1]), values], 1)

    def infill_decoder(self, batch: Batch) -> SentinelInfillDecoder:
        """The decoder that fills the blanks of each row in order (`core.protocols.Infill`)."""
        return SentinelInfillDecoder(self, batch)


@dataclass(frozen=True, eq=False)
class SentinelInfillState(FieldwiseState):
    """The decoder's state, and the blank that it is filling."""

    decoder_state: DecodingState
    blank: Tensor
    """(rows,) index of the current blank, from 0."""
    blanks: Tensor
    """(rows,) number of blanks."""


class SentinelInfillDecoder(nn.Module):
    """Infilling with sentinels: a normalised distribution over the answers to all blanks.

        p(a_0 … a_{K-1} | text) = Π_k p(a_k, closed | X_0 a_0 … X_k, text)

    Its output is a_0 X_1 a_1 X_2 … </s>: after blank k comes X_{k+1}, after the last the end, each
    with the probability of all special tokens that end a span.
    """

    def __init__(self, system: SentinelSeq2Seq, batch: Batch) -> None:
        super().__init__()
        self.system = system
        objective = system.objective
        self.vocabulary = objective.decoder_vocabulary
        self.sentinels = objective.sentinels
        device = batch.tokens.device
        self.answer_tokens = torch.ones(self.vocabulary.size, dtype=torch.bool, device=device)
        closing = (self.sentinels.end, *self.sentinels.ids)
        self.answer_tokens[[*system.vocabulary.unpredictable, *closing]] = False
        self.view = objective.infill_source_view(batch)
        self.blanks = objective.count_blanks(batch)
        max_blanks = len(self.sentinels.ids)
        if int(self.blanks.max()) > max_blanks:
            raise UserError(
                f"a text may have at most {max_blanks} blanks, got {int(self.blanks.max())}; use "
                "fewer, or train with a larger --set sentinels=…"
            )

    def start(self, rows: int, *, condition: Batch | None = None) -> SentinelInfillState:
        assert rows == len(self.view.inputs), "as many rows as there are texts with blanks"
        decoder_state = self.system.start_decoder(self.view, self.system.objective.infill_prefix())
        return SentinelInfillState(decoder_state, torch.zeros_like(self.blanks), self.blanks)

    def peek(self, state: SentinelInfillState) -> Categorical:
        log_probs = self.system.emission.log_probs(state.decoder_state.values)
        sentinels = torch.tensor(self.sentinels.ids, device=log_probs.device)
        next_blank = (state.blank + 1).clamp(max=len(sentinels) - 1)
        last = state.blank + 1 >= state.blanks
        closing = torch.where(last, self.sentinels.end, sentinels[next_blank])
        return Categorical(self.sentinels.merge_span_ends(closing, log_probs))

    def advance(self, state: SentinelInfillState, tokens: Tensor) -> SentinelInfillState:
        sentinels = torch.tensor(self.sentinels.ids, device=tokens.device)
        blank = state.blank + torch.isin(tokens, sentinels)
        return SentinelInfillState(
            self.system.advance(state.decoder_state, tokens), blank, state.blanks
        )

    def max_generation_length(self, condition: int | None) -> int | None:
        return None

    def answers(self, row: int, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        """The answer to each blank of a text, parsed from the output."""
        before_end = itertools.takewhile(lambda token: token != self.sentinels.end, tokens)
        count = int(self.blanks[row])
        return split_answers(before_end, self.sentinels.ids, count)[:count]

    def linearise_fillings(self, row: int, answers: Sequence[Sequence[int]]) -> list[int]:
        """The inverse: the output for these answers, without its end."""
        assert len(answers) == int(self.blanks[row]), "one answer for each blank"
        tokens: list[int] = []
        for number, answer in enumerate(answers):
            tokens += [*([self.sentinels.ids[number]] if number else []), *answer]
        return tokens
