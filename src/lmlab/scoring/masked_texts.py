"""Texts scored by the methods for masked models: all places of many texts read together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.score import Score
from lmlab.scoring.batching import batch_of
from lmlab.scoring.tally import Tally

if TYPE_CHECKING:
    from lmlab.scoring.methods import Method
    from lmlab.scoring.score import Row, Scorer


def masked_texts(
    scorer: Scorer, texts: Sequence[str], *, per_token: bool, after: Sequence[int] | None = None
) -> Iterator[Score]:
    """The scores of some texts, in their order, by a scorer's method.

    A text that is longer than the window is divided as by every rolling score, and each of its
    tokens has one score, in the window that counts it. With `after` only the tokens of a text that
    end behind that many characters have one.
    """
    assert scorer.method is not None
    tallies = [Tally(text, scorer.vocabulary, per_token=per_token) for text in texts]
    rows: list[Row] = []
    for tally in tallies:
        tally.take(scorer.predicted(tally, per_token=True))
        rows += scorer.rows(tally)
    begins = {} if after is None else dict(zip(tallies, after, strict=True))
    for tally in tallies:
        tokens = zip(tally.waiting, tally.spans, strict=True)
        ends = [span[1] for id, span in tokens if id != scorer.vocabulary.end]
        _check_positions(scorer.method, tally.text, ends, begins.get(tally, 0))
    batch = batch_of([row.tokens for row in rows], scorer.system)
    scored = scorer.method.scored(batch, scorer.system) & _counted(batch, rows, begins)
    words = _words(scorer, batch, rows) if scorer.method.name == "within-word" else None
    found = scorer.method.scores(
        scorer.system, batch, scored, words=words, tokens=scorer.tokens_per_batch
    )
    _hand_out(rows, found, scored, scorer)
    scorer.progress(int(scored.sum()))
    for tally in tallies:
        yield tally.score(scorer.convention)


def _check_positions(method: Method, text: str, ends: Sequence[int], after: int) -> None:
    """A UserError where a text has no token at a position, or all positions are in its prefix.

    `ends` are the characters where the tokens end, `after` where the prefix does.
    """
    count, last = len(ends), max(method.positions, default=0)
    if last > count:
        raise UserError(
            f"positions go from 1 to {count} in a text of {count} tokens, and {last} came with "
            f"{text[:40]!r}; leave it out, or score texts that are long enough."
        )
    if last and ends[last - 1] <= after and not method.mean:
        raise UserError(
            f"positions count from the first token of the prefix, which has "
            f"{sum(end <= after for end in ends)}, and only tokens behind it have a score; give "
            "positions of the continuation."
        )


def _counted(batch: Batch, rows: Sequence[Row], begins: dict[Tally, int]) -> Tensor:
    """(B, T) the places of each row that count: those that its window adds, behind its `after`."""
    counted = torch.zeros(batch.tokens.shape, dtype=torch.bool)
    for index, row in enumerate(rows):
        length = len(row.tokens)
        counted[index, length - row.scored : length] = True
        begin = begins.get(row.tally, 0)
        if begin:
            spans = row.tally.spans[max(row.begin - 1, 0) : row.begin - 1 + length]
            behind = torch.tensor([end > begin for _, end in spans], dtype=torch.bool)
            counted[index, length - len(behind) : length] &= behind
    return counted.to(batch.tokens.device)


def _words(scorer: Scorer, batch: Batch, rows: Sequence[Row]) -> Tensor:
    """(B, T) the number of the word that each place is part of; symbols are words of their own."""
    if not hasattr(scorer.tokenizer, "words"):
        raise UserError(
            "within-word needs a tokeniser that tells which tokens make a word, and this model's "
            "does not; take norm."
        )
    words = torch.full(batch.tokens.shape, -1)
    numbers: dict[Tally, list[int]] = {}
    for index, row in enumerate(rows):
        if row.tally not in numbers:
            numbers[row.tally] = scorer.tokenizer.words(row.tally.text)
        own = numbers[row.tally]
        first = max(row.begin, 1)
        there = torch.tensor(own[first - 1 : row.begin + len(row.tokens) - 1], dtype=torch.long)
        words[index, first - row.begin :][: len(there)] = there
    return words.to(batch.tokens.device)


def _hand_out(rows: Sequence[Row], found: Tensor, scored: Tensor, scorer: Scorer) -> None:
    """Give each text the scores of its rows."""
    assert scorer.method is not None
    values, counts = found.double().cpu(), scored.cpu()
    waiting: dict[Tally, tuple[list[float], list[bool]]] = {}
    for index, row in enumerate(rows):
        length = len(row.tokens)
        new = slice(length - row.scored, length)
        own, own_counts = waiting.setdefault(row.tally, ([], []))
        own += values[index, new].tolist()
        own_counts += counts[index, new].tolist()
    for tally, (own, own_counts) in waiting.items():
        tally.add_some(own, own_counts, scorer.method.kind)
