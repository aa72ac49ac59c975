"""Denoising encoder-decoders (BART), and template-constrained infilling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.state import State
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.causal_lm import DecodingState, FieldwiseState
from lmlab.models.seq2seq import EncoderDecoderLM, PointerGenerator
from lmlab.objectives.denoising_base import DenoisingObjective, text_bodies


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


TEMPLATE_BLANK = -1
"""Stands in a template for any number of tokens."""


@dataclass(frozen=True, eq=False)
class TemplateState(FieldwiseState):
    """A partial text and the template elements that it may have reached.

    A template has P elements, each a token or a blank, and the end token last.
    """

    inner: DecodingState
    template: Tensor
    """(B, P) tokens, `TEMPLATE_BLANK` at blanks, the end token last and as padding."""
    active_elements: Tensor
    """(B, P) bool: the next token may match this element. A text may match a template in several
    ways, so several may be active (an NFA)."""


class TemplateConstrainedDecoder:
    """Generates whole texts that match a template: p(s_t | s_<t, blanked text).

    A token is allowed if the text up to it still matches the template: the fixed tokens in order,
    and anything in the blanks. Other tokens get probability zero without renormalisation, so that a
    text's log-probability is the model's own.
    """

    def __init__(self, system: EncoderDecoderLM, batch: Batch, *, mask: int) -> None:
        vocabulary = system.vocabulary
        assert vocabulary.end is not None, "whole texts are generated up to an end token"
        self.system = system
        self.batch = batch
        self.vocabulary: Vocabulary = vocabulary
        self.patterns = [
            np.where(body == mask, TEMPLATE_BLANK, body) for body in text_bodies(batch, vocabulary)
        ]
        excluded = [*vocabulary.unpredictable, vocabulary.end]
        self.answer_tokens = torch.ones(
            vocabulary.size, dtype=torch.bool, device=batch.tokens.device
        )
        self.answer_tokens[excluded] = False
        if any(np.isin(pattern, excluded).any() for pattern in self.patterns):
            raise UserError(
                "a text with blanks must consist of words and mask tokens, got another special "
                "token (<s>, </s> or <pad>) inside it; remove it."
            )

    def start(self, rows: int, *, condition: Batch | None = None) -> TemplateState:
        assert rows == len(self.batch), "each row has its own blanks"
        end = [int(self.vocabulary.end or 0)]
        collated = Batch.collate([[*pattern, *end] for pattern in self.patterns], end[0])
        template = collated.tokens.to(self.batch.tokens.device)
        active = torch.zeros_like(template, dtype=torch.bool)
        active[:, 0] = True
        inner = self.system.start(rows, condition=self.batch)
        return TemplateState(inner, template, skip_empty_blanks(template, active))

    def peek(self, state: State) -> Categorical:
        """(rows, V) the model's log-probabilities, -inf at tokens that do not match."""
        assert isinstance(state, TemplateState)
        elements = state.template.clamp(min=0)
        fixed = state.active_elements & (state.template != TEMPLATE_BLANK)
        in_blank = (state.active_elements & (state.template == TEMPLATE_BLANK)).any(1, keepdim=True)
        forced = torch.zeros(len(elements), self.vocabulary.size, device=elements.device)
        forced = forced.scatter_add(1, elements, fixed.float()) > 0
        allowed = forced | (in_blank & self.answer_tokens)
        log_probs = self.system.peek(state.inner).log_probs
        return Categorical(log_probs.masked_fill(~allowed, float("-inf")))

    def advance(self, state: State, tokens: Tensor) -> TemplateState:
        assert isinstance(state, TemplateState)
        template, active = state.template, state.active_elements
        stays = active & (template == TEMPLATE_BLANK) & self.answer_tokens[tokens][:, None]
        moves = active & (template == tokens[:, None])
        next_active = stays.clone()
        next_active[:, 1:] |= moves[:, :-1]
        inner = self.system.advance(state.inner, tokens)
        return TemplateState(inner, template, skip_empty_blanks(template, next_active))

    def max_generation_length(self, condition: int | None) -> int | None:
        return None

    def answers(self, row: int, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        """The content of each blank of text `row`, given the generated text without end."""
        return align_template(self.patterns[row].tolist(), list(tokens))

    def linearise_fillings(self, row: int, answers: Sequence[Sequence[int]]) -> list[int]:
        """Text `row` with these answers in its blanks, without end."""
        fillings = iter(answers)
        parts = [
            next(fillings) if token_or_blank == TEMPLATE_BLANK else (token_or_blank,)
            for token_or_blank in self.patterns[row].tolist()
        ]
        return [token for part in parts for token in part]


def skip_empty_blanks(template: Tensor, active: Tensor) -> Tensor:
    """The active elements, closed under leaving a blank empty (epsilon moves)."""
    active = active.clone()
    for element in (template[:, :-1] == TEMPLATE_BLANK).any(0).nonzero().flatten().tolist():
        active[:, element + 1] |= active[:, element] & (template[:, element] == TEMPLATE_BLANK)
    return active


def align_template(template: Sequence[int], tokens: Sequence[int]) -> list[tuple[int, ...]]:
    """The tokens in each blank of a template; if ambiguous, earlier blanks are shortest.

    If the text was truncated, later blanks are empty. Cost O(P · T).
    """
    matches = template_matches(template, tokens, partial=False)
    if not matches[0, 0]:
        matches = template_matches(template, tokens, partial=True)
    assert matches[0, 0], "the text does not match this template"
    contents, position = [], 0
    for element, element_token in enumerate(template):
        if element_token == TEMPLATE_BLANK:
            stop = position + int(matches[element + 1, position:].argmax())
            contents.append(tuple(tokens[position:stop]))
            position = stop
        else:
            position = min(position + 1, len(tokens))
    return contents


def template_matches(
    template: Sequence[int], tokens: Sequence[int], *, partial: bool
) -> np.ndarray:
    """(P + 1, T + 1) bool: whether the template from element p on matches the text from t on.

    `partial`: the text may stop before the template does.
    """
    text = np.asarray(tokens, dtype=np.int64)
    matches = np.zeros((len(template) + 1, len(text) + 1), dtype=bool)
    matches[-1, -1] = True
    for element in range(len(template) - 1, -1, -1):
        remaining = matches[element + 1]
        if template[element] == TEMPLATE_BLANK:
            matches[element] = np.logical_or.accumulate(remaining[::-1])[::-1]
        else:
            matches[element, :-1] = (text == template[element]) & remaining[1:]
            matches[element, -1] = partial
    return matches
