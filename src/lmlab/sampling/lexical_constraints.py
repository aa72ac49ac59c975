"""Lexical constraints of beam search: banned words, required words, a forced prefix."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lmlab.core.errors import UserError
from lmlab.data.tokenizers import CJK_CHARACTER
from lmlab.objectives.masking.whole_word_masking import WORD_RULES

Phrase = tuple[int, ...]
"""The tokens of one or several words, in order."""
Spellings = tuple[Phrase, ...]
"""Alternative tokenisations of the same words, depending on the context before them."""


@dataclass(frozen=True, kw_only=True)
class WordBoundaries:
    """Word boundaries by token ids; by default each token is a word.

    There is a boundary between two tokens unless the second continues the word of the first.
    """

    continuation_tokens: frozenset[int] = frozenset()
    """Tokens that continue the word before them."""
    word_end_tokens: frozenset[int] = frozenset()
    """Tokens that nothing can continue."""

    def is_boundary(self, before: int, after: int) -> bool:
        """Whether a word ends with `before` if `after` follows it."""
        return after not in self.continuation_tokens or before in self.word_end_tokens

    def continues_word(self, token: int) -> bool:
        """Whether a word ends with this token whatever follows."""
        return not self.continuation_tokens or token in self.word_end_tokens


@dataclass(frozen=True, kw_only=True)
class LexicalConstraints:
    """Banned words, required words and a forced prefix of every sequence.

    Only whole words count: a phrase must start and end at word boundaries. Words are compared as
    tokens, so another tokenisation of a word (`r ##un` for `run`) is another word.

    Beam search allocates its slots by the number of required tokens generated (dynamic beam
    allocation, Post and Vilar 2018), so that hypotheses which pay for them early survive.
    """

    banned: tuple[Phrase, ...] = ()
    required: tuple[Spellings, ...] = ()
    """One spelling of each is enough."""
    prefix: Phrase = ()
    """Prefix of every sequence; counts as generated, with the system's probability."""
    boundaries: WordBoundaries = field(default_factory=WordBoundaries)

    def __post_init__(self) -> None:
        phrases = (*self.banned, *(phrase for each in self.required for phrase in each or ((),)))
        if not all(phrases):
            raise UserError("a banned or required word needs at least one token.")
        if any(all(map(self.violates, spellings)) for spellings in self.required):
            raise UserError("a required phrase contains a banned one; remove one of them.")
        if self.violates(self.prefix):
            raise UserError("the prefix contains a banned phrase; remove one of them.")

    def forbidden_tokens(self, written: Phrase, *, last: bool = False) -> set[int]:
        """Tokens that would complete a banned phrase: whatever follows, or nothing if `last`."""
        return {
            phrase[-1]
            for phrase in self.banned
            if (last or self.boundaries.continues_word(phrase[-1]))
            and self._goes_on(written, phrase)
        }

    def must_continue(self, written: Phrase) -> bool:
        """Whether the text ends in a banned phrase, so that its last word must continue."""
        return any(self._at_end(written, phrase) for phrase in self.banned)

    def required_tokens(self, written: Phrase) -> set[int]:
        """Tokens that start or continue a required phrase that is still missing."""
        lacking = (each for each in self.required if not self._holds_any(written, each))
        found = set()
        for phrase in (phrase for spellings in lacking for phrase in spellings):
            if begun := self._begun(written, phrase):
                found.add(phrase[begun])
            if self._begins_word(written, phrase[0]):
                found.add(phrase[0])
        return found

    def needs_boundary(self, written: Phrase) -> bool:
        """Whether a required phrase occurs only at the end, its last word still open."""
        return any(
            any(self._at_end(written, phrase) for phrase in spellings)
            and not any(self._holds(written, phrase, ended=False) for phrase in spellings)
            for spellings in self.required
        )

    def satisfied(self, written: Phrase) -> int:
        """Number of required tokens generated: of whole phrases, and of one begun at the end."""
        return sum(
            max(
                len(phrase) if self._holds(written, phrase) else self._begun(written, phrase)
                for phrase in spellings
            )
            for spellings in self.required
        )

    def missing(self, written: Phrase) -> tuple[Phrase, ...]:
        """The first spelling of each missing required phrase, if the text ends here."""
        return tuple(
            spellings[0] for spellings in self.required if not self._holds_any(written, spellings)
        )

    def violates(self, written: Phrase) -> bool:
        """Whether the text contains a banned phrase, if it ends here."""
        return any(self._holds(written, phrase) for phrase in self.banned)

    def _holds_any(self, written: Phrase, spellings: Spellings) -> bool:
        return any(self._holds(written, phrase) for phrase in spellings)

    def _holds(self, written: Phrase, phrase: Phrase, *, ended: bool = True) -> bool:
        """Whether a phrase occurs as whole words; `ended`: the text's end is a boundary too."""
        for place in _places(written, phrase):
            after = place + len(phrase)
            closed = ended if after == len(written) else self._border(written, after)
            if self._border(written, place) and (
                closed or self.boundaries.continues_word(phrase[-1])
            ):
                return True
        return False

    def _at_end(self, written: Phrase, phrase: Phrase) -> bool:
        """Whether the text ends in a phrase as whole words, the last of which may continue."""
        place = len(written) - len(phrase)
        return (
            written[-len(phrase) :] == phrase
            and self._border(written, place)
            and not self.boundaries.continues_word(phrase[-1])
        )

    def _begun(self, written: Phrase, phrase: Phrase) -> int:
        """How many tokens of a phrase, fewer than all, the text ends in."""
        for size in range(min(len(phrase) - 1, len(written)), 0, -1):
            if written[-size:] == phrase[:size] and self._border(written, len(written) - size):
                return size
        return 0

    def _goes_on(self, written: Phrase, phrase: Phrase) -> bool:
        """Whether one more token would complete a phrase."""
        if len(phrase) == 1:
            return self._begins_word(written, phrase[0])
        place = len(written) + 1 - len(phrase)
        return written[1 - len(phrase) :] == phrase[:-1] and self._border(written, place)

    def _begins_word(self, written: Phrase, token: int) -> bool:
        return not written or self.boundaries.is_boundary(written[-1], token)

    def _border(self, written: Phrase, place: int) -> bool:
        """Whether a word begins at a position."""
        return place == 0 or self.boundaries.is_boundary(written[place - 1], written[place])


def _places(written: Phrase, phrase: Phrase) -> Iterator[int]:
    """The positions where a phrase's tokens occur."""
    size = len(phrase)
    for place in range(len(written) - size + 1):
        if written[place : place + size] == phrase:
            yield place


def allocate_beam(
    possible: list[tuple[int, int, float, int]], width: int
) -> list[tuple[int, int, float]]:
    """Dynamic beam allocation: `width` of (row, token, log-probability, required tokens held).

    Continuations with equally many required tokens form a bank, best first; banks take turns, the
    fullest first (Post and Vilar 2018).
    """
    banks: dict[int, list[tuple[int, int, float]]] = {}
    for row, token, log_prob, held in sorted(possible, key=lambda way: -way[2]):
        if log_prob > -math.inf:
            banks.setdefault(held, []).append((row, token, log_prob))
    waiting = [banks[held] for held in sorted(banks, reverse=True)]
    chosen: list[tuple[int, int, float]] = []
    turn = 0
    while len(chosen) < width and any(turn < len(bank) for bank in waiting):
        chosen += [bank[turn] for bank in waiting if turn < len(bank)]
        turn += 1
    return chosen[:width]


CONTEXTS = ("", "a ", "(")
"""Contexts that a word's tokenisation may depend on: none, a word, a punctuation mark."""
REPLACEMENT_CHARACTER = "\ufffd"
"""What an incomplete UTF-8 sequence is decoded to."""


def word_boundaries(tokenizer: Any) -> WordBoundaries:
    """The word boundaries of a tokeniser.

    As in whole-word masking (## continues, Ġ and ▁ begin a word), except that punctuation is no
    part of a word: `dog.` is a word and a mark, however tokenised.
    """
    size = tokenizer.vocabulary.size
    rule = WORD_RULES.get(tokenizer.kind, WORD_RULES["word"])
    begins, ends = rule([tokenizer.token(id) for id in range(size)])
    texts = [str(tokenizer.decode([id])).strip().removeprefix("##") for id in range(size)]
    return WordBoundaries(
        continuation_tokens=frozenset(
            id for id, text in enumerate(texts) if not begins[id] and _in_words(text[:1])
        ),
        word_end_tokens=frozenset(
            id for id, text in enumerate(texts) if ends[id] or not _in_words(text[-1:])
        ),
    )


def _in_words(character: str) -> bool:
    """Whether it is a letter, digit or accent; not a CJK character, which is a word by itself."""
    if character in ("", REPLACEMENT_CHARACTER):
        return character == REPLACEMENT_CHARACTER
    return unicodedata.category(character)[0] in "LMN" and not CJK_CHARACTER.match(character)


def token_spellings(text: str, tokenizer: Any, what: str) -> Spellings:
    """The tokenisations of words at the start of a text, after a word, after punctuation.

    A UserError if they contain unknown tokens; `what` names them in its message.
    """
    encode_known_words(text, tokenizer, what)
    found = []
    for before in CONTEXTS:
        ids = tokenizer.encode(before + text)
        # Most tokenisers attach a space to the word after it; character-level ones do not.
        for given in map(tokenizer.encode, (before, before.strip())):
            if ids[: len(given)] == given and tokenizer.vocabulary.unknown not in ids:
                found.append(tuple(ids[len(given) :]))
                break
    return tuple(dict.fromkeys(phrase for phrase in found if phrase)) or ((),)


def encode_known_words(text: str, tokenizer: Any, what: str) -> tuple[int, ...]:
    """The tokens of required or banned words; a UserError if any is unknown."""
    tokens = tuple(tokenizer.encode(text))
    if tokenizer.vocabulary.unknown in tokens:
        raise UserError(
            f"the {what} {text!r} contains what the model has no token for, so it is never "
            "generated; remove it."
        )
    return tokens
