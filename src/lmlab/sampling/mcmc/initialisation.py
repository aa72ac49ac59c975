"""MCMC initialisation: templates with free positions, and their initial tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.core.system_protocols import FillSystem, SystemInfo
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.batches import pad_rows
from lmlab.data.corpus import Layout
from lmlab.sampling.mcmc.moves import ChainState, sample_sequentially
from lmlab.sampling.mcmc.proposals import (
    MaskedLMProposal,
    allowed_tokens,
    sample_tokens,
    uniform_proposal,
)
from lmlab.sampling.prompts import encode_prefix, parse_masked_text


@dataclass(frozen=True, kw_only=True)
class ChainTemplate:
    """Template of a chain: the tokens all its texts share, and the free positions."""

    tokens: tuple[int | None, ...]
    """None at blank positions."""
    free: tuple[bool, ...]
    """Positions that are resampled, all blanks among them."""
    note: str | None = None
    """A note for the user on unknown words."""


def blank_template(length: int, prefix: str, tokenizer: TokenizerProtocol) -> ChainTemplate:
    """A template of `length` blanks after a prefix."""
    if length < 1:
        raise UserError(f"the length must be 1 or more, got {length}.")
    encoded = encode_prefix(prefix, tokenizer)
    prefix_ids: list[int | None] = list(encoded.ids)
    return ChainTemplate(
        tokens=(*prefix_ids, *[None] * length),
        free=(*[False] * len(prefix_ids), *[True] * length),
        note=encoded.note,
    )


def masked_template(text: str, tokenizer: TokenizerProtocol) -> ChainTemplate:
    """The template of a text with <mask> or [MASK]; a UserError if it has none."""
    parsed = parse_masked_text(text, tokenizer)
    return ChainTemplate(
        tokens=parsed.ids, free=tuple(id is None for id in parsed.ids), note=parsed.note
    )


def text_template(
    text: str, positions: Sequence[int], tokenizer: TokenizerProtocol
) -> ChainTemplate:
    """The template of a given text; all tokens are free, or those at some 1-based positions."""
    encoded = encode_prefix(text, tokenizer)
    if not encoded.ids:
        raise UserError("the text to start from is empty; give one with at least a token.")
    for position in positions:
        if not 1 <= position <= len(encoded.ids):
            raise UserError(
                f"positions must be from 1 to {len(encoded.ids)}, the tokens of the text, got "
                f"{position}."
            )
    free_positions = set(positions) or set(range(1, len(encoded.ids) + 1))
    free = tuple(number in free_positions for number, _ in enumerate(encoded.ids, 1))
    return ChainTemplate(tokens=encoded.ids, free=free, note=encoded.note)


class Initialisation(Protocol):
    """Initialisation: fills the blanks of all chains before the first step."""

    @property
    def name(self) -> str:
        """Name of the setting."""
        ...

    def fill(
        self, state: ChainState, blank: Tensor, *, generator: torch.Generator | None = None
    ) -> ChainState:
        """The chains with the positions of `blank` (C, T) filled."""
        ...


@dataclass(frozen=True)
class RandomInitialisation:
    """Uniformly random tokens: overdispersed chains, as R-hat assumes."""

    vocabulary: Vocabulary
    name: str = "random"

    def fill(
        self, state: ChainState, blank: Tensor, *, generator: torch.Generator | None = None
    ) -> ChainState:
        log_probs = uniform_proposal(self.vocabulary).token_log_probs.expand(int(blank.sum()), -1)
        if not len(log_probs):
            return state
        tokens = sample_tokens(log_probs, generator).to(blank.device)
        return replace_text(state, state.batch.tokens.masked_scatter(blank, tokens))


@dataclass(frozen=True)
class MaskedInitialisation:
    """Masked initialisation: mask all blanks, then sample them one by one in random order."""

    system: FillSystem = field(repr=False)
    name: str = "masked"

    def fill(
        self, state: ChainState, blank: Tensor, *, generator: torch.Generator | None = None
    ) -> ChainState:
        return sample_sequentially(MaskedLMProposal(self.system), state, blank, generator=generator)


def initial_state(
    templates: Sequence[ChainTemplate],
    start: Initialisation,
    layout: Layout,
    system: SystemInfo,
    generator: torch.Generator,
) -> ChainState:
    """The initial state of all chains, one template each."""
    vocabulary = system.vocabulary
    contiguous = layout.kind == "contiguous"
    first = vocabulary.end if contiguous or vocabulary.start is None else vocabulary.start
    assert first is not None, "a vocabulary needs a start or an end token"
    special_token_count = special_tokens_in_row(layout, vocabulary)
    end = vocabulary.end
    tail = [] if end is None else [end] * (special_token_count - 1)
    rows = [
        [first, *(vocabulary.pad if id is None else id for id in form.tokens), *tail]
        for form in templates
    ]
    system.check_length(max(map(len, rows)))
    batch = pad_rows(rows, system)
    fixed = _text_mask(batch.tokens, [[not is_free for is_free in form.free] for form in templates])
    state = ChainState(
        batch=batch, fixed=fixed if fixed.any() else None, special_token_count=special_token_count
    )
    blank = _text_mask(batch.tokens, [[id is None for id in form.tokens] for form in templates])
    state = start.fill(state, blank, generator=generator)
    _check(state, vocabulary)
    return state


def special_tokens_in_row(layout: Layout, vocabulary: Vocabulary) -> int:
    """Special tokens around a text in its row: <s>, and </s> if there is one."""
    return 1 + (layout.end and vocabulary.end is not None)


def replace_text(state: ChainState, tokens: Tensor) -> ChainState:
    """The same chains with other tokens."""
    return replace(state, batch=replace(state.batch, tokens=tokens))


def _text_mask(tokens: Tensor, marks: Sequence[Sequence[bool]]) -> Tensor:
    """(C, T) bool from marks for the tokens of each text, which start at position 1."""
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    for row, row_marks in enumerate(marks):
        mask[row, 1 : 1 + len(row_marks)] = torch.tensor(row_marks, dtype=torch.bool)
    return mask


def _check(state: ChainState, vocabulary: Vocabulary) -> None:
    allowed = allowed_tokens(vocabulary, vocabulary.size).to(state.batch.tokens.device)
    if not allowed[state.batch.tokens[state.free]].all():
        raise UserError(
            "the text to start from has a special token (start, end, mask or padding) at a "
            "free position; remove it."
        )
