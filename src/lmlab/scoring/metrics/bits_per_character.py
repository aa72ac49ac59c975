"""Bits per character; differences per character where the tokens differ."""

from __future__ import annotations

from lmlab.scoring.comparison_records import ComparisonRow
from lmlab.scoring.metric import Column, Metric, PairedTest


def _need_characters(first: ComparisonRow, second: ComparisonRow) -> bool:
    """Whether two rows have different tokens, and characters to compare them by."""
    defined = None not in (first["bits_per_character"], second["bits_per_character"])
    return defined and first.tokenization != second.tokenization


METRIC = Metric(
    name="bits_per_character",
    explanation="bits per character compare across tokenizers, perplexities do not",
    compute=lambda runs: runs.mean(lambda run: run.summary.bits_per_character),
    table=Column(title="bits/char", order=50, shown=lambda rows: True),
    report=Column(title="bits/character", order=50, shown=lambda rows: True),
    test=PairedTest(
        totals=lambda run: -run.totals,
        counts=lambda run: run.characters,
        quantity="nats",
        unit="character",
        applies=_need_characters,
    ),
)
