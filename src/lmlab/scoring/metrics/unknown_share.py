"""Share of unknown tokens."""

from __future__ import annotations

from collections.abc import Iterator

from lmlab.scoring.comparison_records import ComparisonRow
from lmlab.scoring.metric import Column, EvaluatedRuns, Metric


def _share(runs: EvaluatedRuns) -> float:
    summary = runs.first.summary
    return summary.unknown / max(summary.tokens, 1)


def _row_notes(row: ComparisonRow) -> Iterator[str]:
    if row.unknown:
        share = row.unknown / max(row.tokens, 1)
        yield (
            f"{row.name}: {row.unknown:,} of {row.tokens:,} tokens ({share:.1%}) are unknown and "
            "counted as the one token <unk>, which is easier than the word itself."
        )


METRIC = Metric(
    name="unknown_share",
    explanation="unknown is the share of tokens that are unknown words",
    compute=_share,
    table=Column(
        title="unknown",
        order=80,
        format=lambda value: f"{value:.1%}",
        shown=lambda rows: any(row.unknown for row in rows),
    ),
    recorded=False,  # JSON has the count
    row_notes=_row_notes,
    in_legend=False,
)
