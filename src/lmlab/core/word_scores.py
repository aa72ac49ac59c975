"""Word scores: token scores summed by word, for any tokenizer and any segmentation into words."""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmlab.core.errors import UserError
from lmlab.core.vocabulary import END

if TYPE_CHECKING:
    from lmlab.core.score import Score, TokenScore

Span = tuple[int, int]
"""Characters [start, end) of a text."""
NON_SPACE = re.compile(r"\S+")


@dataclass(frozen=True, kw_only=True)
class WordScore:
    """A word, its characters [start, end) in the text, and its log-probability in nats."""

    word: str
    start: int
    end: int
    log_prob: float
    tokens: int
    """Number of tokens summed; 0 where a token that ends in a later word covers this one."""
    unknown: bool = False
    """Whether one of its tokens was unknown."""
    shared: bool = False
    """Whether a token covers characters of this word and of another. Its log-probability counts
    towards the word in which it ends, so those of both words are not theirs alone."""
    end_token: bool = False
    """Whether this is the end of the sequence, `</s>`."""

    @property
    def surprisal_bits(self) -> float:
        return self.surprisal_nats / math.log(2)

    @property
    def surprisal_nats(self) -> float:
        return 0.0 - self.log_prob


def spans_by_spaces(text: str) -> list[Span]:
    """The words between white space."""
    return [match.span() for match in NON_SPACE.finditer(text)]


def spans_by_pattern(text: str, pattern: re.Pattern[str]) -> list[Span]:
    """The matches of a regular expression; what is between them is divided at white space.

    So every character that is no white space belongs to exactly one word.
    """
    spans: list[Span] = []
    last = 0
    for match in pattern.finditer(text):
        start, end = _without_spaces(text, *match.span())
        if start < end:
            spans += _between(text, last, start)
            spans.append((start, end))
            last = end
    return spans + _between(text, last, len(text))


def _between(text: str, start: int, end: int) -> list[Span]:
    return [match.span() for match in NON_SPACE.finditer(text, start, end)]


def spans_of_words(text: str, words: Iterable[str]) -> list[Span]:
    """The characters of given words, in order; a UserError unless they spell the text.

    White space counts in neither: 我 爱 北京 are words of 我爱北京, and do n't of don't.
    """
    spans: list[Span] = []
    position = 0
    for word in words:
        start: int | None = None
        for character in word:
            if character.isspace():
                continue
            position = _next_character(text, position)
            if position == len(text) or text[position] != character:
                raise _mismatch(text, position, f"the words have {word!r}")
            start = position if start is None else start
            position += 1
        if start is not None:
            spans.append((start, position))
    position = _next_character(text, position)
    if position < len(text):
        raise _mismatch(text, position, "the words end")
    return spans


def _next_character(text: str, position: int) -> int:
    """The first position from `position` on that is no white space."""
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _mismatch(text: str, position: int, instead: str) -> UserError:
    rest = text[position : position + 12]
    there = f"has {rest!r} at character {position + 1}" if rest else "ends"
    return UserError(
        f"the words do not spell the text, which {there} where {instead}; a segmentation changes "
        "nothing but white space."
    )


def _without_spaces(text: str, start: int, end: int) -> Span:
    """The span without white space around it; where there is nothing else, its end."""
    while end > start and text[end - 1].isspace():
        end -= 1
    while start < end and text[start].isspace():
        start += 1
    return start, end


def word_scores(score: Score, spans: Sequence[Span] | None = None) -> list[WordScore]:
    """Word scores of a scored text: log p(word) = Σ of its tokens' log-probabilities.

    Words are the `spans`, by default those between white space; together they have all characters
    that are no white space. White space around a token does not count. A token belongs to the word
    in which it ends; where it covers characters of several words, all of them are `shared`. One
    that is white space alone (a character model's space) belongs to the next word, as does the
    space that begins a subword. The end of the sequence, where the convention counts it, is an
    entry of its own with the word `</s>`, start and end at the text's length; white space after the
    last word belongs to it, or to the last word where no end is counted. So the entries of a text
    add up to its total, except for a term that belongs to no token.
    """
    if score.tokens and not score.per_token:
        raise UserError(
            "scores by word need scores by token, and there are none: score with per_token, and by "
            "a system that does not score texts as a whole."
        )
    spans = spans_by_spaces(score.text) if spans is None else spans
    tokens: list[list[TokenScore]] = [[] for _ in spans]
    shared = [False] * len(spans)
    ends = [end for _, end in spans]
    end_tokens: list[TokenScore] = []
    for token in score.per_token:
        start, end = _without_spaces(score.text, token.start, token.end)
        last_character = end - 1 if end > start else max(token.start, token.end - 1)
        index = bisect.bisect_right(ends, last_character)
        is_end = token.start == token.end == len(score.text)
        (end_tokens if is_end or index == len(spans) else tokens[index]).append(token)
        first = bisect.bisect_right(ends, start)
        if end > start and first < index:
            shared[first : index + 1] = [True] * (index + 1 - first)
    if spans and end_tokens and not score.convention.end:
        tokens[-1] += end_tokens
        end_tokens = []
    # Truncated text has no score, so no entry either.
    scored = max((index for index, of_word in enumerate(tokens) if of_word), default=-1) + 1
    entries = [
        _word(score.text[start:end], start, end, of_word, shared=of_several)
        for (start, end), of_word, of_several in zip(
            spans[:scored], tokens[:scored], shared[:scored], strict=True
        )
    ]
    length = len(score.text)
    if end_tokens:
        entries.append(_word(END, length, length, end_tokens, end_token=True))
    return entries


def _word(
    word: str,
    start: int,
    end: int,
    tokens: Sequence[TokenScore],
    *,
    shared: bool = False,
    end_token: bool = False,
) -> WordScore:
    return WordScore(
        word=word,
        start=start,
        end=end,
        log_prob=sum(token.log_prob for token in tokens),
        tokens=len(tokens),
        unknown=any(token.unknown for token in tokens),
        shared=shared,
        end_token=end_token,
    )
