"""Word surprisal: token scores summed by word, and a CSV for reading-time studies."""

from __future__ import annotations

import bisect
import csv
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TextIO

from lmlab.core.errors import UserError, escape_csv_cell
from lmlab.core.score import Score, TokenScore
from lmlab.core.vocabulary import END

CSV_COLUMNS = (
    "model",
    "kind",
    "line",
    "position",
    "word",
    "start",
    "end",
    "surprisal_bits",
    "surprisal_nats",
    "unknown",
    "tokens",
)


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

    @property
    def surprisal_bits(self) -> float:
        return self.surprisal_nats / math.log(2)

    @property
    def surprisal_nats(self) -> float:
        return 0.0 - self.log_prob


def word_scores(score: Score) -> list[WordScore]:
    """Word scores of a scored text: log p(word) = Σ of its tokens' log-probabilities.

    Words are separated by white space, whatever the tokenizer. A token belongs to the word in which
    it ends; one that is white space alone (a character model's space, a subword model's that begins
    with it) belongs to the next word. The end of the sequence, where the convention counts it, is
    an entry of its own with the word `</s>`, start and end at the text's length; white space after
    the last word belongs to it, or to the last word where no end is counted. So the entries of a
    text add up to its total, except for a term that belongs to no token.
    """
    if score.tokens and not score.per_token:
        raise UserError(
            "scores by word need scores by token, and there are none: score with per_token, and by "
            "a system that does not score texts as a whole."
        )
    spans = [match.span() for match in re.finditer(r"\S+", score.text)]
    tokens: list[list[TokenScore]] = [[] for _ in spans]
    ends = [end for _, end in spans]
    end_tokens: list[TokenScore] = []
    for token in score.per_token:
        index = bisect.bisect_right(ends, max(token.start, token.end - 1))
        is_end = token.start == token.end == len(score.text)
        (end_tokens if is_end or index == len(spans) else tokens[index]).append(token)
    if spans and end_tokens and not score.convention.end:
        tokens[-1] += end_tokens
        end_tokens = []
    entries = [
        _word(score.text[start:end], start, end, word_tokens)
        for (start, end), word_tokens in zip(spans, tokens, strict=True)
    ]
    # Truncated text has no score, so no entry either.
    last = max((index for index, word_tokens in enumerate(tokens) if word_tokens), default=-1)
    length = len(score.text)
    return entries[: last + 1] + ([_word(END, length, length, end_tokens)] if end_tokens else [])


def _word(word: str, start: int, end: int, tokens: list[TokenScore]) -> WordScore:
    return WordScore(
        word=word,
        start=start,
        end=end,
        log_prob=sum(token.log_prob for token in tokens),
        tokens=len(tokens),
        unknown=any(token.unknown for token in tokens),
    )


def write_surprisal_csv(
    scores: Iterable[Score], file: TextIO, *, model: str = "", raw: bool = False
) -> int:
    """Write surprisal by word as CSV, one row per word; returns the number of words.

    `model` is the name given here, `kind` that of the score: only an `exact` one is surprisal. For
    kind `pseudo` it is -log p of a word given the words on both sides. `line` is the line of a
    score, or else its number, and `position` the word's, both from 1. `start` and `end` are
    character offsets into that text, from 0, end exclusive, so that text[start:end] is the word; a
    file's lines are stripped of surrounding white space. `unknown` is 1 where the word is <unk> to
    the model: its surprisal is then that of *any* unknown word. Spaces and `</s>` are treated as in
    `word_scores`.

    Unless `raw`, a word that a spreadsheet would take for a formula (it begins with =, +, - or @)
    is prefixed by an apostrophe, and control characters are escaped.
    """
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    cell = str if raw else escape_csv_cell
    words = 0
    for number, score in enumerate(scores, 1):
        line = number if score.line is None else score.line
        for position, word in enumerate(word_scores(score), 1):
            surprisal = (f"{word.surprisal_bits:.6f}", f"{word.surprisal_nats:.6f}")
            location = (line, position, cell(word.word), word.start, word.end)
            rest = (*surprisal, int(word.unknown), word.tokens)
            writer.writerow((cell(model), score.kind, *location, *rest))
            words += 1
    return words
