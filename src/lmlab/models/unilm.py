"""UniLM: masked LM that fills bidirectionally, and generates left to right at a moving <mask>."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.parts import HiddenStates, initial_state
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.models.causal_lm import FieldwiseState
from lmlab.models.masked_lm import MaskedLM
from lmlab.objectives.unified_lm import UniLMObjective, generation_segments


@dataclass(frozen=True, eq=False)
class UniLMState(FieldwiseState):
    """The tokens generated so far, without the mask at which the next is predicted."""

    memory: State
    position: Tensor
    """(B,) the position of the next token."""
    segment: int


class UniLM(MaskedLM):
    """UniLM: a masked LM that also generates left to right, each next token at a <mask>.

    A step is two passes of one position each: `peek` appends a mask and discards it, `advance`
    appends the token.
    """

    objective: UniLMObjective
    scorer_kind = "left-to-right"

    def max_generation_length(self, condition: int | None) -> int | None:
        """The condition comes first, and each generated token needs a position after it."""
        if condition is None:
            return self.window
        max_length = self.objective.longest
        return None if max_length is None else max_length - condition

    def start(self, rows: int, *, condition: Batch | None = None) -> UniLMState:
        """The state of `rows` texts before their first token, each given its condition."""
        device = next(self.parameters()).device
        tokens = torch.full((rows, 1), self.vocabulary.bos, device=device)
        lengths = torch.ones(rows, dtype=torch.long, device=device)
        if condition is not None:
            tokens, lengths = condition.tokens, condition.lengths
        source, text = generation_segments(condition)
        view = View(
            inputs=tokens,
            lengths=lengths,
            attention_mask=FullMask(),
            segments=torch.full_like(tokens, source),
        )
        hidden = self.backbone(view, initial_state(self.backbone, rows))
        return UniLMState(hidden.state, lengths, text)

    def peek(self, state: UniLMState) -> Categorical:
        """The distribution of the next token, (rows, V)."""
        assert self.vocabulary.mask is not None
        masks = torch.full_like(state.position, self.vocabulary.mask)
        return Categorical(self.emission.log_probs(self._append(state, masks).values[:, -1]))

    def advance(self, state: UniLMState, tokens: Tensor) -> UniLMState:
        """The state after one more token in each row, (rows,)."""
        memory = self._append(state, tokens).state
        assert memory is not None
        return UniLMState(memory, state.position + 1, state.segment)

    def _append(self, state: UniLMState, tokens: Tensor) -> HiddenStates:
        """Hidden states of one more position that holds the given tokens."""
        self.objective.check_length(int(state.position.max()) + 1)
        view = View(
            inputs=tokens[:, None],
            lengths=torch.ones_like(tokens),
            attention_mask=FullMask(),
            positions=state.position[:, None],
            segments=torch.full_like(tokens, state.segment)[:, None],
        )
        hidden: HiddenStates = self.backbone(view, state.memory)
        return hidden
