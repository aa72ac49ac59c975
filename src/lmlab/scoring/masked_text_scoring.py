"""Pseudo-log-likelihood scoring of texts: masked positions of many texts in joint batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.score import Score
from lmlab.data.batches import pad_rows
from lmlab.scoring.score_accumulator import ScoreAccumulator, ScoringRow

POSITIONS_PER_BATCH = 131_072
"""Window positions batched together: small strides have many times a text's tokens."""

if TYPE_CHECKING:
    from lmlab.scoring.scorer import Scorer
    from lmlab.scoring.scoring_methods import ScoringMethod


def score_masked_texts(
    scorer: Scorer, texts: Sequence[str], *, per_token: bool, after: Sequence[int] | None = None
) -> Iterator[Score]:
    """Score texts by a masked-LM method, in their order.

    A text longer than the window is scored in overlapping windows, each of which counts the tokens
    in its middle, so that each token has one score. With `after` only the tokens that end after
    that many characters are scored. At most `POSITIONS_PER_BATCH` window positions are batched
    together.
    """
    assert scorer.method is not None
    accumulators = [
        ScoreAccumulator(text, scorer.vocabulary, per_token=per_token) for text in texts
    ]
    rows: list[ScoringRow] = []
    for accumulator in accumulators:
        accumulator.add_tokens(scorer.predicted(accumulator, per_token=True))
        rows += scorer.rows(accumulator)
    prefix_lengths = {} if after is None else dict(zip(accumulators, after, strict=True))
    for accumulator in accumulators:
        tokens = zip(accumulator.pending, accumulator.spans, strict=True)
        ends = [span[1] for id, span in tokens if id != scorer.vocabulary.end]
        _check_positions(scorer.method, accumulator.text, ends, prefix_lengths.get(accumulator, 0))
    words = _words(scorer, accumulators) if scorer.method.name == "within-word" else {}
    scored: dict[ScoreAccumulator, tuple[list[float], list[bool]]] = {
        accumulator: ([], []) for accumulator in accumulators
    }
    for group in _row_groups(rows):
        for row, values, counts in _score_rows(scorer, group, prefix_lengths, words):
            text_values, text_counts = scored[row.accumulator]
            text_values += values
            text_counts += counts
    for accumulator in accumulators:
        accumulator.add_selected(*scored[accumulator], scorer.method.kind)
        yield accumulator.score(scorer.convention)


def _row_groups(rows: Sequence[ScoringRow]) -> Iterator[list[ScoringRow]]:
    """The rows in lists of at most `POSITIONS_PER_BATCH` positions each, padding included."""
    group: list[ScoringRow] = []
    max_length = 0
    for row in rows:
        max_length = max(max_length, row.positions)
        if group and max_length * (len(group) + 1) > POSITIONS_PER_BATCH:
            yield group
            group, max_length = [], row.positions
        group.append(row)
    if group:
        yield group


def _score_rows(
    scorer: Scorer,
    rows: Sequence[ScoringRow],
    prefix_lengths: dict[ScoreAccumulator, int],
    words: dict[ScoreAccumulator, list[int]],
) -> Iterator[tuple[ScoringRow, list[float], list[bool]]]:
    """Each row with the scores of the tokens its window adds, and which of them count."""
    assert scorer.method is not None
    batch = pad_rows([row.tokens for row in rows], scorer.system)
    scored = scorer.method.scored_positions(batch, scorer.system) & _counted_mask(
        batch, rows, prefix_lengths
    )
    word_indices = _word_indices(batch, rows, words) if words else None
    scores = scorer.method.scores(
        scorer.system, batch, scored, words=word_indices, tokens=scorer.tokens_per_batch
    )
    scorer.progress(int(scored.sum()))
    values, counts = scores.double().cpu(), scored.cpu()
    for index, row in enumerate(rows):
        yield row, values[index, row.counted].tolist(), counts[index, row.counted].tolist()


def _check_positions(method: ScoringMethod, text: str, ends: Sequence[int], after: int) -> None:
    """A UserError where a text has no token at a position, or all positions are in its prefix.

    `ends` are the character offsets where the tokens end, `after` where the prefix does.
    """
    count, last = len(ends), max(method.positions, default=0)
    if last > count:
        raise UserError(
            f"positions must be from 1 to {count} in a text of {count} tokens, got {last} "
            f"with {text[:40]!r}; remove it, or score longer texts."
        )
    if last and ends[last - 1] <= after and not method.mean:
        raise UserError(
            "positions count from the first token of the prefix, which has "
            f"{sum(end <= after for end in ends)}, and only tokens after it have a score; "
            "give positions of the continuation."
        )


def _counted_mask(
    batch: Batch, rows: Sequence[ScoringRow], prefix_lengths: dict[ScoreAccumulator, int]
) -> Tensor:
    """Mask (B, T) of the positions that count: those a row's window adds, after its `after`."""
    counted = torch.zeros(batch.tokens.shape, dtype=torch.bool)
    for index, row in enumerate(rows):
        counted[index, row.counted] = True
        prefix_length = prefix_lengths.get(row.accumulator, 0)
        if prefix_length:
            first = max(row.begin, 1)
            spans = row.accumulator.spans[first - 1 : row.end - 1]
            after_prefix = torch.tensor([end > prefix_length for _, end in spans], dtype=torch.bool)
            counted[index, first - row.begin : row.end - row.begin] &= after_prefix
    return counted.to(batch.tokens.device)


def _words(
    scorer: Scorer, accumulators: Sequence[ScoreAccumulator]
) -> dict[ScoreAccumulator, list[int]]:
    """The index of the word that each token of a text belongs to."""
    if not hasattr(scorer.tokenizer, "words"):
        raise UserError(
            "within-word needs a tokenizer with word boundaries, which this model's does not "
            "have; use norm."
        )
    return {accumulator: scorer.tokenizer.words(accumulator.text) for accumulator in accumulators}


def _word_indices(
    batch: Batch, rows: Sequence[ScoringRow], words: dict[ScoreAccumulator, list[int]]
) -> Tensor:
    """Word indices (B, T) of the positions; each special token is a word of its own."""
    word_indices = torch.full(batch.tokens.shape, -1)
    for index, row in enumerate(rows):
        first = max(row.begin, 1)
        row_words = torch.tensor(words[row.accumulator][first - 1 : row.end - 1], dtype=torch.long)
        word_indices[index, first - row.begin :][: len(row_words)] = row_words
    return word_indices.to(batch.tokens.device)
