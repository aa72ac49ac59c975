"""Tokens that belong together: words of several pieces, and hiding them whole."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.protocols import TokenizerProtocol
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import CJK_CHARACTER
from lmlab.layers.per_example_rng import per_example_uniform
from lmlab.objectives.masking.token_masking import (
    ensure_one_masked,
    ordinary_token_ids,
    run_starts,
    shift_right,
)

IDEOGRAPH_LEAD_BYTES = re.compile("[\xe3-\xe9]")
"""First bytes of ideographs in UTF-8, as byte-level BPE writes them."""
BYTE_LEVEL_SPACE, METASPACE = "Ġ", "▁"


class TokenUnits(Protocol):
    """What belongs together in a clean batch."""

    def starts(self, batch: Batch, allowed: Tensor) -> Tensor:
        """(B, T) bool: the places at which a unit begins; it goes on to the next beginning, or to
        the next place where `allowed` (B, T) is false."""
        ...


class WordUnits:
    """Words, from what the tokeniser's tokens look like; each token one until it is known.

    WordPiece marks what goes on a word (##), byte-level BPE and Unigram what begins one (Ġ, ▁); a
    tokeniser of characters has words of letters and digits between anything else. An ideograph is
    a word, as in BERT, because a text of them has no spaces.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._begins: Tensor | None = None
        """(V,) bool: the tokens that begin a word wherever they stand."""
        self._ends: Tensor | None = None
        """(V,) bool: the tokens after which a word begins, whatever it is."""
        self._marked = False
        """Whether a token tells by itself that it goes on a word."""

    def setup_tokenizer(self, pieces: TokenizerProtocol) -> None:
        """Look at every token once."""
        tokens = [pieces.token(i) for i in range(self.vocabulary.size)]
        ordinary = set(ordinary_token_ids(self.vocabulary).tolist())
        begins, ends = WORD_RULES.get(pieces.kind, _every_token)(tokens)
        self._marked = pieces.kind in ("word", "wordpiece", "bpe", "unigram")
        alone = [i not in ordinary or i == self.vocabulary.unknown for i in range(len(tokens))]
        self._begins = torch.tensor(begins) | torch.tensor(alone)
        self._ends = torch.tensor(ends) | torch.tensor(alone)

    @property
    def word_start_tokens(self) -> Tensor | None:
        """(V,) bool: the tokens that a word may begin with; None until the tokeniser is known, and
        for characters, where it may be any."""
        return self._begins if self._marked else None

    def starts(self, batch: Batch, allowed: Tensor) -> Tensor:
        if self._begins is None or self._ends is None:
            return allowed
        begins = self._begins.to(allowed.device)[batch.tokens]
        ends = self._ends.to(allowed.device)[batch.tokens]
        after_end = shift_right(ends | ~allowed, fill=True)
        return allowed & (begins | after_end)


@dataclass(frozen=True)
class WholeWordMasking:
    """Every unit by itself with probability `rate`, hidden whole or not at all.

    With words it is whole-word masking (Cui et al. 2019), with mentions ERNIE's (Sun et al. 2019).
    A token is hidden if its unit is, so that `rate` is the expected share of the tokens too.
    """

    units: TokenUnits
    rate: float = 0.15

    def __call__(
        self, batch: Batch, allowed: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        starts = self.units.starts(batch, allowed) | ~allowed
        drawn = per_example_uniform(allowed.shape, allowed.device, generator=generator)
        drawn = drawn.gather(1, run_starts(starts))
        return ensure_one_masked(drawn.masked_fill(~allowed, 2.0), drawn < self.rate, allowed)


WordBoundaryFlags = tuple[list[bool], list[bool]]
"""Of each token whether it begins a word, and whether the next one does."""


def _every_token(tokens: list[str]) -> WordBoundaryFlags:
    return [True] * len(tokens), [True] * len(tokens)


def _marked_inside(tokens: list[str]) -> WordBoundaryFlags:
    """WordPiece: ## goes on."""
    return [not token.startswith("##") for token in tokens], [False] * len(tokens)


def _marked_first(tokens: list[str]) -> WordBoundaryFlags:
    """BPE and Unigram: a space before the word is part of its first token; or </w> of its last."""
    byte_level = any(token.startswith(BYTE_LEVEL_SPACE) for token in tokens)
    ideograph = IDEOGRAPH_LEAD_BYTES if byte_level else CJK_CHARACTER
    space = BYTE_LEVEL_SPACE if byte_level else METASPACE
    begins = [token.startswith(space) or bool(ideograph.match(token)) for token in tokens]
    return begins, [token.endswith("</w>") for token in tokens]


def _characters(tokens: list[str]) -> WordBoundaryFlags:
    """Letters and digits go on, ideographs and all other signs stand alone."""
    alone = [not token.isalnum() or bool(CJK_CHARACTER.match(token)) for token in tokens]
    return alone, alone


WORD_RULES = {
    "word": _every_token,
    "wordpiece": _marked_inside,
    "bpe": _marked_first,
    "unigram": _marked_first,
    "char": _characters,
}
