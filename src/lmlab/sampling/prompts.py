"""Prompt encoding: ids of a prefix, of a source, or of a text with masks (`<mask>`, `[MASK]`)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError, nearest_names
from lmlab.core.evaluation_mode import device_of
from lmlab.core.system_protocols import SystemInfo
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.vocabulary import MASK
from lmlab.data.corpus import Layout
from lmlab.data.corpus_encoding import special_tokens_around
from lmlab.data.text_codecs import CHARACTER_KINDS


@dataclass(frozen=True, kw_only=True)
class EncodedPrompt:
    """A prompt as tokens, some of which may be unknown."""

    unknown: tuple[str, ...] = ()
    """Words that are <unk> to the model."""

    @property
    def note(self) -> str | None:
        """A note for the user if some words are unknown."""
        if not self.unknown:
            return None
        listed = ", ".join(repr(word) for word in self.unknown)
        return f"the model does not know {listed} and sees <unk> in their place."


@dataclass(frozen=True, kw_only=True)
class EncodedPrefix(EncodedPrompt):
    """The tokens of a prompt's prefix."""

    ids: tuple[int, ...]


def encode_prefix(text: str, tokenizer: TokenizerProtocol) -> EncodedPrefix:
    """The ids of a prefix, without the start token, which the system adds itself."""
    ids, spans = tokenizer.encode_with_offsets(text)
    vocabulary = tokenizer.vocabulary
    missing = [text[a:b] for id, (a, b) in zip(ids, spans, strict=True) if id == vocabulary.unknown]
    return EncodedPrefix(ids=tuple(ids), unknown=tuple(dict.fromkeys(missing)))


def encode_source(text: str, tokenizer: TokenizerProtocol, system: SystemInfo) -> Batch:
    """A source with special tokens as in training, as a batch of one row.

    A UserError if it exceeds the system's maximum length.
    """
    head, tail = special_tokens_around(tokenizer.vocabulary, Layout())
    ids = [*head, *tokenizer.encode(text), *tail]
    system.check_condition_length(len(ids))
    return Batch.collate([ids], system.vocabulary.pad).to(device_of(system))


MASK_SPELLINGS = (MASK, "[MASK]")
"""Spellings of a mask that every model accepts, whatever its tokenizer's own."""
SENTINEL = "<extra_id_{}>"
"""T5's sentinel tokens, numbered from 0; the first serves as mask token if there is none."""
PLACEHOLDER = "\ufffc"
"""Unicode's object replacement character, which no BPE merge crosses."""
BRACKETED = re.compile(r"<[^<>\s]*>|\[[^\[\]\s]*\]|<\s?mask|mask\s?>|_{2,}")
"""Strings that may be meant as a mask."""


@dataclass(frozen=True, kw_only=True)
class MaskedText(EncodedPrompt):
    """A text and its masks."""

    text: str
    spans: tuple[tuple[int, int], ...]
    """Characters [start, end) of each mask."""
    ids: tuple[int | None, ...]
    """The tokens of the text, None at each mask."""

    def with_mask(self, token: int) -> list[int]:
        """The ids with this token at each mask."""
        return [token if id is None else id for id in self.ids]

    def filled(self, answers: Sequence[str], joined: Sequence[bool] | None = None) -> str:
        """The text with an answer at each mask; a `joined` one has no space before it."""
        pieces, last = [], 0
        joined = [False] * len(answers) if joined is None else joined
        for (start, end), answer, close in zip(self.spans, answers, joined, strict=True):
            before = self.text[last:start]
            pieces += [before.rstrip() if close else before, answer]
            last = end
        return "".join([*pieces, self.text[last:]])


def parse_masked_text(text: str, tokenizer: TokenizerProtocol) -> MaskedText:
    """Parse a user's masked text; a UserError if it has no mask, or something like one."""
    names = mask_spellings(tokenizer)
    pattern = re.compile("|".join(re.escape(name) for name in names))
    spans = [match.span() for match in pattern.finditer(text)]
    _check(text, spans, names, tokenizer)
    ids, unknown = _encode(text, spans, tokenizer)
    return MaskedText(text=text, spans=tuple(spans), ids=tuple(ids), unknown=tuple(unknown))


def mask_token_id(tokenizer: TokenizerProtocol) -> int | None:
    """The id of the mask token, or of the first sentinel if there is none."""
    mask: int | None = tokenizer.vocabulary.mask
    return tokenizer.id(SENTINEL.format(0)) if mask is None else mask


def mask_spellings(tokenizer: TokenizerProtocol) -> tuple[str, ...]:
    """The accepted spellings of a mask: the usual ones and the tokenizer's own, longest first.

    Any sentinel may be used at any mask: masks are numbered from left to right.
    """
    mask = mask_token_id(tokenizer)
    tokenizer_mask = () if mask is None else (tokenizer.token(mask),)
    sentinels = itertools.takewhile(
        lambda name: tokenizer.id(name) is not None, map(SENTINEL.format, itertools.count())
    )
    return tuple(
        sorted(dict.fromkeys((*MASK_SPELLINGS, *tokenizer_mask, *sentinels)), key=len, reverse=True)
    )


def _check(
    text: str, spans: list[tuple[int, int]], names: Sequence[str], tokenizer: TokenizerProtocol
) -> None:
    for match in BRACKETED.finditer(text):
        is_mask = any(start <= match.start() < end for start, end in spans)
        if is_mask or tokenizer.id(match.group()) is not None:
            continue
        if close := nearest_names(match.group(), names, max_names=1):
            raise UserError(
                f"{match.group()!r} is no mask token, in {_excerpt(text)}; did you mean "
                f"{close[0]!r}?"
            )
    if not spans:
        raise UserError(
            f"a text to fill in needs a mask token, and {_excerpt(text)} has none; insert "
            f"{' or '.join(sorted(names)[:4])} where something is missing."
        )


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _encode(
    text: str, spans: list[tuple[int, int]], tokenizer: TokenizerProtocol
) -> tuple[list[int | None], list[str]]:
    """The ids with None at the masks, and the unknown words."""
    mask = mask_token_id(tokenizer)
    if mask is not None:
        # Pretrained tokenizers often parse their own mask token, with the spacing of their
        # training.
        encoded, unknown = _encode_plain(
            _replace_masks(text, spans, tokenizer.token(mask)), tokenizer
        )
        if encoded.count(mask) == len(spans):
            return [None if id == mask else id for id in encoded], unknown
    if tokenizer.kind == "bpe":
        # White space before a mask belongs to it, as in RoBERTa's <mask>.
        with_placeholders = re.sub(
            rf"\s+{PLACEHOLDER}", f" {PLACEHOLDER}", _replace_masks(text, spans, PLACEHOLDER)
        )
        return _encode_around(with_placeholders, tokenizer)
    ids: list[int | None] = []
    unknown_words: list[str] = []
    segment_start = 0
    for start, end in [*spans, (len(text), len(text))]:
        segment = text[segment_start:start]
        # A mask stands for a word with its space, except in character-level tokenizers.
        encoded, unknown = _encode_plain(
            segment if tokenizer.kind in CHARACTER_KINDS else segment.strip(), tokenizer
        )
        ids += encoded if end == start else [*encoded, None]
        unknown_words += unknown
        segment_start = end
    return ids, list(dict.fromkeys(unknown_words))


def _encode_plain(text: str, tokenizer: TokenizerProtocol) -> tuple[list[int], list[str]]:
    encoded = encode_prefix(text, tokenizer)
    return list(encoded.ids), list(encoded.unknown)


def _replace_masks(text: str, spans: list[tuple[int, int]], replacement: str) -> str:
    masked_text = MaskedText(text=text, spans=tuple(spans), ids=())
    return masked_text.filled([replacement] * len(spans))


def _encode_around(text: str, tokenizer: TokenizerProtocol) -> tuple[list[int | None], list[str]]:
    """The ids of a text with placeholders: all tokens that spell one are one mask."""
    ids, spans = tokenizer.encode_with_offsets(text)
    masks = [index for index, character in enumerate(text) if character == PLACEHOLDER]
    encoded: list[int | None] = []
    unknown_words: list[str] = []
    last = -1
    for id, (low, high) in zip(ids, spans, strict=True):
        placeholder = next((index for index in masks if index <= low and high <= index + 1), None)
        if placeholder is None:
            encoded.append(id)
            if id == tokenizer.vocabulary.unknown:
                unknown_words.append(text[low:high])
        elif placeholder != last:
            encoded.append(None)
            last = placeholder
    return encoded, unknown_words
