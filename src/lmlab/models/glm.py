"""GLM (Du et al. 2022): autoregressive blank infilling over a bidirectionally encoded text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lmlab.core.assembly import Assembly
from lmlab.core.attention_mask import CausalMask
from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.parts import initial_state
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.emissions.softmax import Softmax
from lmlab.models.causal_lm import FieldwiseState, split_answers
from lmlab.objectives.blank_infilling import BlankInfilling, PartA


@dataclass(frozen=True, eq=False)
class GLMState(FieldwiseState):
    """Decoding state of a text with blanks, one of which is being filled."""

    memory: State
    values: Tensor
    """(B, W) the latest hidden state."""
    blanks: Tensor
    """(B, n) the positions of the blanks, padded at the end."""
    blank_index: Tensor
    """(B,) the blank that is being filled, from 0."""
    intra_position: Tensor
    """(B,) the intra-blank position (second position id) of the latest token."""


def with_unpredictable_token(emission: Softmax, token: int) -> Softmax:
    """The emission with one more input-only token, whose probability is zero."""
    emission.never_predicted[token] = float("-inf")
    return emission


class GLM(Assembly):
    """GLM: fills blanks of unknown length; unconditional generation is one blank.

    A step is one pass of one position: the text and the tokens generated so far are in the KV
    cache.
    """

    objective: BlankInfilling
    scorer_kind = "left-to-right"

    def start(self, rows: int, *, condition: Batch | None = None) -> GLMState:
        """The state of `rows` texts before their first token, each given its condition."""
        device = next(self.parameters()).device
        first = torch.full((rows,), self.vocabulary.bos, device=device)
        return self.start_infilling(self.objective.part_a(condition, first))

    def peek(self, state: GLMState) -> Categorical:
        """The distribution of the next token, (rows, V); the end token ends the blank."""
        # Special tokens beyond the tokenizer's vocabulary are input only, never generated.
        return Categorical(self.emission.log_probs(state.values)[:, : self.vocabulary.size])

    def advance(self, state: GLMState, tokens: Tensor) -> GLMState:
        """The state after one more token in each row, (rows,)."""
        return self.write(state, tokens, state.blank_index, state.intra_position + 1)

    def start_infilling(self, part_a: PartA) -> GLMState:
        """The state after encoding a text with blanks and starting its first blank."""
        rows = len(part_a.blanks)
        hidden = self.backbone(part_a.view, initial_state(self.backbone, rows))
        zeros = torch.zeros_like(part_a.blanks[:, 0])
        state = GLMState(hidden.state, hidden.values[:, -1], part_a.blanks, zeros, zeros)
        starts = torch.full_like(zeros, self.objective.start)
        return self.write(state, starts, zeros, zeros + 1)

    def write(self, state: GLMState, tokens: Tensor, blank: Tensor, intra: Tensor) -> GLMState:
        """Add one token to each row, at position `intra` of blank number `blank`."""
        if self.window is not None and int(intra.max()) > self.window:
            raise UserError(
                f"a blank may have at most {self.window} tokens; generate fewer, or train with a "
                "larger --set length=…."
            )
        blank_position = state.blanks.gather(1, blank[:, None]).squeeze(1)
        view = View(
            inputs=tokens[:, None],
            lengths=torch.ones_like(tokens),
            attention_mask=CausalMask(),
            positions=torch.stack([blank_position, intra], -1)[:, None],
        )
        hidden = self.backbone(view, state.memory)
        return GLMState(hidden.state, hidden.values[:, -1], state.blanks, blank, intra)

    def encode(self, batch: Batch) -> Tensor:
        """(B, W) the hidden state of the first position, which attends to the whole text."""
        return self.encode_tokens(batch)[:, 0]

    def encode_tokens(self, batch: Batch) -> Tensor:
        """(B, T, W) the hidden state of each position of a text without blanks."""
        return self.hidden(self.objective.text_view(batch.tokens, batch.lengths)).values

    def infill_decoder(self, batch: Batch) -> BlankDecoder:
        """The decoder that fills the blanks of each row from left to right."""
        return BlankDecoder(self, batch)


class BlankDecoder:
    """Blank decoder: fills a batch's blanks in one sequence: a_1 … [START] b_1 … [START] … </s>.

    [END] of a blank that is not the last is represented by the [START] of the next.
    """

    def __init__(self, system: GLM, batch: Batch) -> None:
        self.system = system
        self.batch = batch
        self.separator = system.objective.start
        self.vocabulary = replace(system.vocabulary, size=self.separator + 1)
        self.answer_tokens = torch.ones(
            self.separator + 1, dtype=torch.bool, device=batch.tokens.device
        )
        # Special tokens of the model follow those of the tokenizer.
        self.answer_tokens[[*system.vocabulary.unpredictable, system.objective.end]] = False
        self.answer_tokens[system.vocabulary.size :] = False
        masks = (batch.tokens == system.objective.mask) & batch.mask()
        self.counts = masks.sum(1)
        if not bool((self.counts > 0).all()):
            raise UserError("a text to fill must have at least one blank, got none.")
        order = masks.long().argsort(dim=1, descending=True, stable=True)
        self.places = order[:, : int(self.counts.max())]

    def start(self, rows: int, *, condition: Batch | None = None) -> GLMState:
        assert rows == len(self.batch), "each row has its own blanks"
        view = self.system.objective.text_view(self.batch.tokens, self.batch.lengths)
        # Padding repeats the last blank, so that the last one is known by its index.
        last = self.counts[:, None] - 1
        order = torch.arange(self.places.shape[1], device=last.device).minimum(last)
        return self.system.start_infilling(PartA(view, self.places.gather(1, order)))

    def peek(self, state: GLMState) -> Categorical:
        """(rows, V and the separator); the end token is possible in the last blank only."""
        log_probs = self.system.emission.log_probs(state.values)
        end = self.system.objective.end
        ends, never = log_probs[:, end], torch.full_like(log_probs[:, end], float("-inf"))
        last = self._is_last(state)
        outputs = log_probs.clone()
        outputs[:, end] = torch.where(last, ends, never)
        outputs[:, self.separator] = torch.where(last, never, ends)
        return Categorical(outputs)

    def advance(self, state: GLMState, tokens: Tensor) -> GLMState:
        next_blank = tokens == self.separator
        intra = torch.where(next_blank, 1, state.intra_position + 1)
        return self.system.write(state, tokens, state.blank_index + next_blank.long(), intra)

    def max_generation_length(self, condition: int | None) -> int | None:
        return None

    @staticmethod
    def _is_last(state: GLMState) -> Tensor:
        """(rows,) bool: no other blank follows the current one."""
        next_index = (state.blank_index + 1).clamp(max=state.blanks.shape[1] - 1)[:, None]
        current = state.blanks.gather(1, state.blank_index[:, None])
        return (state.blanks.gather(1, next_index) == current).squeeze(1)

    def answers(self, row: int, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        return split_answers(tokens, [self.separator], int(self.counts[row]))

    def linearise_fillings(self, row: int, answers: Sequence[Sequence[int]]) -> list[int]:
        first, *others = answers
        return [*first, *(token for answer in others for token in (self.separator, *answer))]
