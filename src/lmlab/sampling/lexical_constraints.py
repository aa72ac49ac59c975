"""What a search may not write, and what it must."""

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
"""The tokens of a word or of several, in their order."""
Spellings = tuple[Phrase, ...]
"""The ways in which a tokeniser spells the same words, as what stands before them asks for."""


@dataclass(frozen=True, kw_only=True)
class WordBoundaries:
    """Where words begin and end, by the tokens alone; each token is a word unless told otherwise.

    Between two tokens there is a border unless the second goes on with the word of the first.
    """

    continuation_tokens: frozenset[int] = frozenset()
    """Tokens that go on with the word before them."""
    word_end_tokens: frozenset[int] = frozenset()
    """Tokens that nothing goes on with."""

    def is_boundary(self, before: int, after: int) -> bool:
        """Whether a word ends with `before` where `after` follows it."""
        return after not in self.continuation_tokens or before in self.word_end_tokens

    def continues_word(self, token: int) -> bool:
        """Whether a word ends with this token whatever follows."""
        return not self.continuation_tokens or token in self.word_end_tokens


@dataclass(frozen=True, kw_only=True)
class LexicalConstraints:
    """Words that no sequence holds, words that every one holds, and how every one begins.

    Words are whole: a phrase counts where it begins at a word's beginning and ends at a word's
    end. They are known by their tokens, so that a word which the model spells otherwise than the
    tokeniser would (`r ##un` for `run`) is another word.

    A search divides its places among hypotheses by how much of what is required they hold (Post
    and Vilar 2018), so that those which pay for it early are not pushed out by those that do not.
    """

    banned: tuple[Phrase, ...] = ()
    required: tuple[Spellings, ...] = ()
    """Of each one spelling is enough."""
    prefix: Phrase = ()
    """What every sequence begins with; it counts as written, with the system's probability."""
    boundaries: WordBoundaries = field(default_factory=WordBoundaries)

    def __post_init__(self) -> None:
        phrases = (*self.banned, *(phrase for each in self.required for phrase in each or ((),)))
        if not all(phrases):
            raise UserError("a word that is banned or required needs at least one token.")
        if any(all(map(self.violates, spellings)) for spellings in self.required):
            raise UserError("what is required holds what is banned; drop one of them.")
        if self.violates(self.prefix):
            raise UserError("the prefix holds what is banned; drop one of them.")

    def forbidden_tokens(self, written: Phrase, *, last: bool = False) -> set[int]:
        """Tokens that would complete a banned phrase: whatever follows, or nothing if `last`."""
        return {
            phrase[-1]
            for phrase in self.banned
            if (last or self.boundaries.continues_word(phrase[-1]))
            and self._goes_on(written, phrase)
        }

    def must_continue(self, written: Phrase) -> bool:
        """Whether a banned phrase stands at the end, so that its last word may not end there."""
        return any(self._at_end(written, phrase) for phrase in self.banned)

    def required_tokens(self, written: Phrase) -> set[int]:
        """Tokens that go on with a required phrase which is not there yet, or begin it."""
        lacking = (each for each in self.required if not self._holds_any(written, each))
        found = set()
        for phrase in (phrase for spellings in lacking for phrase in spellings):
            if begun := self._begun(written, phrase):
                found.add(phrase[begun])
            if self._begins_word(written, phrase[0]):
                found.add(phrase[0])
        return found

    def needs_boundary(self, written: Phrase) -> bool:
        """Whether a required phrase stands at the end, and only there, its last word still open."""
        return any(
            any(self._at_end(written, phrase) for phrase in spellings)
            and not any(self._holds(written, phrase, ended=False) for phrase in spellings)
            for spellings in self.required
        )

    def satisfied(self, written: Phrase) -> int:
        """How many required tokens are there: of whole phrases, and of one begun at the end."""
        return sum(
            max(
                len(phrase) if self._holds(written, phrase) else self._begun(written, phrase)
                for phrase in spellings
            )
            for spellings in self.required
        )

    def missing(self, written: Phrase) -> tuple[Phrase, ...]:
        """The first spelling of all that is required and not there, if the text ends so."""
        return tuple(
            spellings[0] for spellings in self.required if not self._holds_any(written, spellings)
        )

    def violates(self, written: Phrase) -> bool:
        """Whether something banned is there, if the text ends so."""
        return any(self._holds(written, phrase) for phrase in self.banned)

    def _holds_any(self, written: Phrase, spellings: Spellings) -> bool:
        return any(self._holds(written, phrase) for phrase in spellings)

    def _holds(self, written: Phrase, phrase: Phrase, *, ended: bool = True) -> bool:
        """Whether a phrase stands there as words; `ended`: the text's end is a word's end too."""
        for place in _places(written, phrase):
            after = place + len(phrase)
            closed = ended if after == len(written) else self._border(written, after)
            if self._border(written, place) and (
                closed or self.boundaries.continues_word(phrase[-1])
            ):
                return True
        return False

    def _at_end(self, written: Phrase, phrase: Phrase) -> bool:
        """Whether a phrase stands at the end as words, the last of which may still go on."""
        place = len(written) - len(phrase)
        return (
            written[-len(phrase) :] == phrase
            and self._border(written, place)
            and not self.boundaries.continues_word(phrase[-1])
        )

    def _begun(self, written: Phrase, phrase: Phrase) -> int:
        """How many tokens of a phrase stand at the end of what was written; fewer than all."""
        for size in range(min(len(phrase) - 1, len(written)), 0, -1):
            if written[-size:] == phrase[:size] and self._border(written, len(written) - size):
                return size
        return 0

    def _goes_on(self, written: Phrase, phrase: Phrase) -> bool:
        """Whether a phrase would be complete with one more token."""
        if len(phrase) == 1:
            return self._begins_word(written, phrase[0])
        place = len(written) + 1 - len(phrase)
        return written[1 - len(phrase) :] == phrase[:-1] and self._border(written, place)

    def _begins_word(self, written: Phrase, token: int) -> bool:
        return not written or self.boundaries.is_boundary(written[-1], token)

    def _border(self, written: Phrase, place: int) -> bool:
        """Whether a word begins at a place."""
        return place == 0 or self.boundaries.is_boundary(written[place - 1], written[place])


def _places(written: Phrase, phrase: Phrase) -> Iterator[int]:
    """Where the tokens of a phrase stand one after another."""
    size = len(phrase)
    for place in range(len(written) - size + 1):
        if written[place : place + size] == phrase:
            yield place


def allocate_beam(
    possible: list[tuple[int, int, float, int]], width: int
) -> list[tuple[int, int, float]]:
    """The `width` ways on that are kept, of (row, token, log-probability, required tokens held).

    Those that hold as much stand in one bank, best first; banks take turns, the fullest first.
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
"""What may stand before a word, as far as its spelling depends on it: nothing, a word, a sign."""
REPLACEMENT_CHARACTER = "\ufffd"
"""What a piece of a character is decoded to."""


def word_boundaries(tokenizer: Any) -> WordBoundaries:
    """Where the words of a tokeniser begin and end.

    As for hiding whole words (WordPiece's ## goes on, Ġ and ▁ begin), but that signs are no part
    of a word: `dog.` is a word and a sign, by whatever tokens.
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
    """Whether it is a letter, digit or accent of words that are more than itself."""
    if character in ("", REPLACEMENT_CHARACTER):
        return character == REPLACEMENT_CHARACTER
    return unicodedata.category(character)[0] in "LMN" and not CJK_CHARACTER.match(character)


def token_spellings(text: str, tokenizer: Any, what: str) -> Spellings:
    """How the tokeniser spells words that a text may hold: at its beginning, after a word, a sign.

    A UserError where they hold what the model never writes; `what` they are is for its sentence.
    """
    encode_known_words(text, tokenizer, what)
    found = []
    for before in CONTEXTS:
        ids = tokenizer.encode(before + text)
        # Most tokenisers count a space to the word after it, those of characters do not.
        for given in map(tokenizer.encode, (before, before.strip())):
            if ids[: len(given)] == given and tokenizer.vocabulary.unknown not in ids:
                found.append(tuple(ids[len(given) :]))
                break
    return tuple(dict.fromkeys(phrase for phrase in found if phrase)) or ((),)


def encode_known_words(text: str, tokenizer: Any, what: str) -> tuple[int, ...]:
    """The tokens of what a translation must or must not hold, all of which it could write."""
    tokens = tuple(tokenizer.encode(text))
    if tokenizer.vocabulary.unknown in tokens:
        raise UserError(
            f"the {what} {text!r} holds what the model has no token for, so it is never written; "
            "leave it out."
        )
    return tokens
