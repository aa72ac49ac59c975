"""Whole-word masking: subwords grouped into words (WordPiece, BPE, characters), masked together."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.text_codecs import CJK_CHARACTER
from lmlab.layers.per_example_rng import per_example_uniform
from lmlab.objectives.masking.token_masking import (
    ensure_one_masked,
    ordinary_token_ids,
    run_starts,
    shift_right,
)

IDEOGRAPH_LEAD_BYTES = re.compile("[\xe3-\xe9]")
"""First bytes of ideographs in UTF-8, as byte-level BPE spells them …"""
SPELLED_LEAD_BYTES = re.compile("<0xE[3-9]>")
"""… and as the byte tokenizer does."""
BYTE_LEVEL_SPACE, METASPACE = "Ġ", "▁"


class TokenUnits(Protocol):
    """Groups the tokens of a clean batch into units."""

    def starts(self, batch: Batch, allowed: Tensor) -> Tensor:
        """(B, T) bool: where a unit begins; it extends to the next beginning, or to the next
        position where `allowed` (B, T) is false."""
        ...


class WordUnits:
    """Words, by the spelling of the tokens; every token is one until the tokenizer is known.

    WordPiece marks continuations (##), byte-level BPE and Unigram the start of a word (Ġ, ▁); with
    characters or bytes, words are runs of letters and digits. An ideograph is a word, as in BERT,
    because such text has no spaces.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._begins: Tensor | None = None
        """(V,) bool: tokens that always begin a word."""
        self._ends: Tensor | None = None
        """(V,) bool: tokens after which a word begins."""
        self._marked = False
        """Whether tokens themselves mark that they continue a word."""

    def setup_tokenizer(self, tokenizer: TokenizerProtocol) -> None:
        """Classify every token of the vocabulary once."""
        tokens = [tokenizer.token(i) for i in range(self.vocabulary.size)]
        ordinary = set(ordinary_token_ids(self.vocabulary).tolist())
        begins, ends = WORD_RULES.get(tokenizer.kind, _every_token)(tokens)
        self._marked = tokenizer.kind in ("word", "wordpiece", "bpe", "unigram")
        is_single = [i not in ordinary or i == self.vocabulary.unknown for i in range(len(tokens))]
        self._begins = torch.tensor(begins) | torch.tensor(is_single)
        self._ends = torch.tensor(ends) | torch.tensor(is_single)

    @property
    def word_start_tokens(self) -> Tensor | None:
        """(V,) bool: tokens that may begin a word; None until the tokenizer is known, and for
        characters, where any may."""
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
    """Whole-unit masking: each unit with probability `rate`, whole or not at all.

    With words it is whole-word masking (Cui et al. 2019), with mentions ERNIE's (Sun et al. 2019).
    A token is masked if its unit is, so `rate` is the expected share of masked tokens too.
    """

    units: TokenUnits
    rate: float = 0.15

    def __call__(
        self, batch: Batch, allowed: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        starts = self.units.starts(batch, allowed) | ~allowed
        uniforms = per_example_uniform(allowed.shape, allowed.device, generator=generator)
        uniforms = uniforms.gather(1, run_starts(starts))
        return ensure_one_masked(uniforms.masked_fill(~allowed, 2.0), uniforms < self.rate, allowed)


WordBoundaryFlags = tuple[list[bool], list[bool]]
"""For each token, whether it begins a word, and whether the next one does."""


def _every_token(tokens: list[str]) -> WordBoundaryFlags:
    return [True] * len(tokens), [True] * len(tokens)


def _marked_inside(tokens: list[str]) -> WordBoundaryFlags:
    """WordPiece: ## continues a word."""
    return [not token.startswith("##") for token in tokens], [False] * len(tokens)


def _marked_first(tokens: list[str]) -> WordBoundaryFlags:
    """BPE and Unigram: a word's first token includes the space before it, or its last has </w>."""
    byte_level = any(token.startswith(BYTE_LEVEL_SPACE) for token in tokens)
    ideograph = IDEOGRAPH_LEAD_BYTES if byte_level else CJK_CHARACTER
    space = BYTE_LEVEL_SPACE if byte_level else METASPACE
    begins = [token.startswith(space) or bool(ideograph.match(token)) for token in tokens]
    return begins, [token.endswith("</w>") for token in tokens]


def _characters(tokens: list[str]) -> WordBoundaryFlags:
    """Letters and digits continue a word; ideographs and all other characters stand alone."""
    alone = [not token.isalnum() or bool(CJK_CHARACTER.match(token)) for token in tokens]
    return alone, alone


def _bytes(tokens: list[str]) -> WordBoundaryFlags:
    """ASCII letters and digits and bytes beyond ASCII continue a word, except that the first byte
    of an ideograph begins one; all other characters stand alone."""
    alone = [len(token) == 1 and not token.isalnum() for token in tokens]
    leads = [bool(SPELLED_LEAD_BYTES.fullmatch(token)) for token in tokens]
    return [one or lead for one, lead in zip(alone, leads, strict=True)], alone


WORD_RULES = {
    "word": _every_token,
    "wordpiece": _marked_inside,
    "bpe": _marked_first,
    "unigram": _marked_first,
    "char": _characters,
    "byte": _bytes,
}
