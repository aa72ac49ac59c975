"""Relevance labels `relevant`: the spans of a row's text that support its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmlab.core.errors import UserError

Spans = Sequence[tuple[int, int]]


def check_relevant(row: Mapping[str, Any], text: str) -> None:
    """A UserError if `relevant` is given and is no list of [start, end) in the text."""
    if "relevant" not in row:
        return
    said = "relevant must be a list of [start, end), characters of the text"
    if not isinstance(row["relevant"], list):
        raise UserError(f"{said}, got {row['relevant']!r}.")
    for span in row["relevant"]:
        pair = isinstance(span, list | tuple) and len(span) == 2
        if not pair or not all(isinstance(end, int) for end in span):
            raise UserError(f"{said}, got {span!r}.")
        if not 0 <= span[0] < span[1] <= len(text):
            raise UserError(f"{said}, got {list(span)} in {len(text)} characters.")


def relevant_text_recall(
    rows: Sequence[Mapping[str, Any]], seen: Sequence[Spans]
) -> dict[str, float]:
    """Recall of the relevant spans, over rows that have any; empty if none has.

    Gives the share of spans encoded, and of rows with all spans encoded. A span counts if all of it
    was encoded, both ends included.
    """
    told = [(row["relevant"], read) for row, read in zip(rows, seen, strict=True)
            if row.get("relevant")]  # fmt: skip
    if not told:
        return {}
    found = [[_within(span, read) for span in relevant] for relevant, read in told]
    return {
        "relevant_read": sum(map(sum, found)) / sum(map(len, found)),
        "all_relevant_read": sum(map(all, found)) / len(found),
    }


def _within(span: Sequence[int], read: Spans) -> bool:
    return any(low <= span[0] and span[1] <= high for low, high in read)
