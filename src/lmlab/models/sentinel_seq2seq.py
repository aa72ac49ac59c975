"""Systems that write what was hidden behind sentinels: one stretch after another, or a whole text.

The pieces that filling blanks of unknown length needs (`Infill`) are here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.view import View
from lmlab.models.causal_lm import DecodingState
from lmlab.models.seq2seq import EncoderDecoderLM
from lmlab.objectives.objective_interfaces import SentinelObjective


class SentinelSeq2Seq(EncoderDecoderLM):
    """An encoder and a decoder that writes a text, or what belongs into the blanks of one.

    `peek` is over texts: all that the sentinels get is the end's, since they end a stretch as well.
    """

    objective: SentinelObjective
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
        """(B, W) the mean of the encoder's hidden states over a text, its place 0 left out."""
        values, real = self.encode_tokens(batch), batch.targets_mask()[..., None]
        return (values * real).sum(1) / real.sum(1).clamp(min=1)

    def encode_tokens(self, batch: Batch) -> Tensor:
        """(B, T, W) the encoder's hidden states of a text; zeros at place 0, which is not fed."""
        values = self.backbone.run_encoder(self.objective.encoder_view(batch))
        return torch.cat([torch.zeros_like(values[:, :1]), values], 1)

    def infill_decoder(self, batch: Batch) -> SentinelInfillDecoder:
        """What writes the blanks of each row, one after another (`core.protocols.Infill`)."""
        return SentinelInfillDecoder(self, batch)


@dataclass(frozen=True, eq=False)
class SentinelInfillState:
    """Where the decoder is, and which blank it is writing."""

    decoder_state: DecodingState
    blank: Tensor
    """(rows,) number of the blank that is being written, from 0."""
    blanks: Tensor
    """(rows,) how many there are."""

    def select(self, rows: Tensor) -> SentinelInfillState:
        return SentinelInfillState(
            self.decoder_state.select(rows), self.blank[rows], self.blanks[rows]
        )

    def detach(self) -> SentinelInfillState:
        return SentinelInfillState(self.decoder_state.detach(), self.blank, self.blanks)


class SentinelInfillDecoder(nn.Module):
    """The answers of some texts to their blanks: a distribution that sums to one over all of them.

        p(a_0 … a_{K-1} | text) = Π_k p(a_k, closed | X_0 a_0 … X_k, text)

    What it writes is a_0 X_1 a_1 X_2 … </s>: after blank k comes X_{k+1}, after the last the end,
    each with the probability of all symbols that end a stretch.
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
        most = len(self.sentinels.ids)
        if int(self.blanks.max()) > most:
            raise UserError(
                f"this system can tell {most} blanks of a text apart, and one with "
                f"{int(self.blanks.max())} came; leave fewer of them, or train it with --set "
                "sentinels=…"
            )

    def start(self, rows: int, *, condition: Batch | None = None) -> SentinelInfillState:
        assert rows == len(self.view.inputs), "as many rows as there are texts with blanks"
        opened = self.system.start_decoder(self.view, self.system.objective.infill_prefix())
        return SentinelInfillState(opened, torch.zeros_like(self.blanks), self.blanks)

    def peek(self, state: SentinelInfillState) -> Categorical:
        log_probs = self.system.emission.log_probs(state.decoder_state.values)
        names = torch.tensor(self.sentinels.ids, device=log_probs.device)
        after = (state.blank + 1).clamp(max=len(names) - 1)
        last = state.blank + 1 >= state.blanks
        closing = torch.where(last, self.sentinels.end, names[after])
        return Categorical(self.sentinels.merge_span_ends(closing, log_probs))

    def advance(self, state: SentinelInfillState, tokens: Tensor) -> SentinelInfillState:
        names = torch.tensor(self.sentinels.ids, device=tokens.device)
        moved = state.blank + torch.isin(tokens, names)
        return SentinelInfillState(
            self.system.advance(state.decoder_state, tokens), moved, state.blanks
        )

    def answers(self, row: int, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        """The answer to each blank of a text, read out of what was written for it."""
        found: list[list[int]] = [[]]
        for token in tokens:
            if token == self.sentinels.end:
                break
            if token in self.sentinels.ids:
                found.append([])
            else:
                found[-1].append(token)
        count = int(self.blanks[row])
        found += [[] for _ in range(count - len(found))]
        return [tuple(answer) for answer in found[:count]]

    def linearise_fillings(self, row: int, answers: Sequence[Sequence[int]]) -> list[int]:
        """The other way: what is written where these are the answers, its end left out."""
        assert len(answers) == int(self.blanks[row]), "one answer for each blank"
        tokens: list[int] = []
        for number, answer in enumerate(answers):
            tokens += [*([self.sentinels.ids[number]] if number else []), *answer]
        return tokens
