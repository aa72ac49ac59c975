"""Lexical constraints of beam search: banned, required words, forced prefix; beam allocation."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field

from lmlab.core.errors import UserError
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.data.text_codecs import CJK_CHARACTER, REPLACEMENT_CHARACTER
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

    def always_ends_word(self, token: int) -> bool:
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
        phrases = (
            *self.banned,
            *(phrase for alternatives in self.required for phrase in alternatives or ((),)),
        )
        if not all(phrases):
            raise UserError("a banned or required word needs at least one token.")
        if any(all(map(self.violates, spellings)) for spellings in self.required):
            raise UserError("a required phrase contains a banned one; remove one of them.")
        if self.violates(self.prefix):
            raise UserError("the prefix contains a banned phrase; remove one of them.")

    def forbidden_tokens(self, prefix: Phrase, *, last: bool = False) -> set[int]:
        """Tokens that would complete a banned phrase: whatever follows, or nothing if `last`."""
        return {
            phrase[-1]
            for phrase in self.banned
            if (last or self.boundaries.always_ends_word(phrase[-1]))
            and self._would_complete(prefix, phrase)
        }

    def must_continue(self, prefix: Phrase) -> bool:
        """Whether the text ends in a banned phrase, so that its last word must continue."""
        return any(self._ends_with(prefix, phrase) for phrase in self.banned)

    def required_tokens(self, prefix: Phrase) -> set[int]:
        """Tokens that start or continue a required phrase that is still missing."""
        missing = (
            alternatives
            for alternatives in self.required
            if not self._contains_any(prefix, alternatives)
        )
        tokens = set()
        for phrase in (phrase for spellings in missing for phrase in spellings):
            if matched := self._matched_prefix(prefix, phrase):
                tokens.add(phrase[matched])
            if self._begins_word(prefix, phrase[0]):
                tokens.add(phrase[0])
        return tokens

    def needs_boundary(self, prefix: Phrase) -> bool:
        """Whether a required phrase occurs only at the end, its last word still open."""
        return any(
            any(self._ends_with(prefix, phrase) for phrase in spellings)
            and not any(self._contains(prefix, phrase, ended=False) for phrase in spellings)
            for spellings in self.required
        )

    def satisfied(self, prefix: Phrase) -> int:
        """Number of required tokens generated: of whole phrases, and of one begun at the end."""
        return sum(
            max(
                len(phrase)
                if self._contains(prefix, phrase)
                else self._matched_prefix(prefix, phrase)
                for phrase in spellings
            )
            for spellings in self.required
        )

    def missing(self, prefix: Phrase) -> tuple[Phrase, ...]:
        """The first spelling of each missing required phrase, if the text ends here."""
        return tuple(
            spellings[0] for spellings in self.required if not self._contains_any(prefix, spellings)
        )

    def violates(self, tokens: Phrase) -> bool:
        """Whether the text contains a banned phrase, if it ends here."""
        return any(self._contains(tokens, phrase) for phrase in self.banned)

    def _contains_any(self, tokens: Phrase, spellings: Spellings) -> bool:
        return any(self._contains(tokens, phrase) for phrase in spellings)

    def _contains(self, tokens: Phrase, phrase: Phrase, *, ended: bool = True) -> bool:
        """Whether a phrase occurs as whole words; `ended`: the text's end is a boundary too."""
        for start in _occurrences(tokens, phrase):
            end = start + len(phrase)
            closed = ended if end == len(tokens) else self._is_boundary(tokens, end)
            if self._is_boundary(tokens, start) and (
                closed or self.boundaries.always_ends_word(phrase[-1])
            ):
                return True
        return False

    def _ends_with(self, prefix: Phrase, phrase: Phrase) -> bool:
        """Whether the text ends in a phrase as whole words, the last of which may continue."""
        start = len(prefix) - len(phrase)
        return (
            prefix[-len(phrase) :] == phrase
            and self._is_boundary(prefix, start)
            and not self.boundaries.always_ends_word(phrase[-1])
        )

    def _matched_prefix(self, prefix: Phrase, phrase: Phrase) -> int:
        """How many tokens of a phrase, fewer than all, the text ends in."""
        for size in range(min(len(phrase) - 1, len(prefix)), 0, -1):
            if prefix[-size:] == phrase[:size] and self._is_boundary(prefix, len(prefix) - size):
                return size
        return 0

    def _would_complete(self, prefix: Phrase, phrase: Phrase) -> bool:
        """Whether one more token would complete a phrase."""
        if len(phrase) == 1:
            return self._begins_word(prefix, phrase[0])
        start = len(prefix) + 1 - len(phrase)
        return prefix[1 - len(phrase) :] == phrase[:-1] and self._is_boundary(prefix, start)

    def _begins_word(self, prefix: Phrase, token: int) -> bool:
        return not prefix or self.boundaries.is_boundary(prefix[-1], token)

    def _is_boundary(self, tokens: Phrase, position: int) -> bool:
        """Whether a word begins at a position."""
        return position == 0 or self.boundaries.is_boundary(tokens[position - 1], tokens[position])


def _occurrences(tokens: Phrase, phrase: Phrase) -> Iterator[int]:
    """The positions where a phrase's tokens occur."""
    size = len(phrase)
    for start in range(len(tokens) - size + 1):
        if tokens[start : start + size] == phrase:
            yield start


def allocate_beam(
    candidates: list[tuple[int, int, float, int]], width: int
) -> list[tuple[int, int, float]]:
    """Dynamic beam allocation: `width` of (row, token, log-probability, required tokens held).

    Continuations with equally many required tokens form a bank, best first; banks take turns, the
    fullest first (Post and Vilar 2018).
    """
    banks: dict[int, list[tuple[int, int, float]]] = {}
    for row, token, log_prob, satisfied in sorted(candidates, key=lambda candidate: -candidate[2]):
        if log_prob > -math.inf:
            banks.setdefault(satisfied, []).append((row, token, log_prob))
    ordered_banks = [banks[satisfied] for satisfied in sorted(banks, reverse=True)]
    chosen: list[tuple[int, int, float]] = []
    turn = 0
    while len(chosen) < width and any(turn < len(bank) for bank in ordered_banks):
        chosen += [bank[turn] for bank in ordered_banks if turn < len(bank)]
        turn += 1
    return chosen[:width]


CONTEXTS = ("", "a ", "(")
"""Contexts that a word's tokenisation may depend on: none, a word, a punctuation mark."""


def word_boundaries(tokenizer: TokenizerProtocol) -> WordBoundaries:
    """The word boundaries of a tokenizer.

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


def token_spellings(text: str, tokenizer: TokenizerProtocol, description: str) -> Spellings:
    """The tokenisations of words at the start of a text, after a word, after punctuation.

    A UserError if they contain unknown tokens; `what` names them in its message.
    """
    encode_known_words(text, tokenizer, description)
    spellings = []
    for context in CONTEXTS:
        ids = tokenizer.encode(context + text)
        # Most tokenizers attach a space to the word after it; character-level ones do not.
        for context_ids in map(tokenizer.encode, (context, context.strip())):
            if ids[: len(context_ids)] == context_ids and tokenizer.vocabulary.unknown not in ids:
                spellings.append(tuple(ids[len(context_ids) :]))
                break
    return tuple(dict.fromkeys(phrase for phrase in spellings if phrase)) or ((),)


def encode_known_words(
    text: str, tokenizer: TokenizerProtocol, description: str
) -> tuple[int, ...]:
    """The tokens of required or banned words; a UserError if any is unknown."""
    tokens = tuple(tokenizer.encode(text))
    if tokenizer.vocabulary.unknown in tokens:
        raise UserError(
            f"the {description} {text!r} contains what the model has no token for, so it is never "
            "generated; remove it."
        )
    return tokens
