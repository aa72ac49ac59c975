"""Entropy floor: nats per token of the true distribution on the same texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lmlab.data.corpus import Corpus
from lmlab.scoring.comparison_records import ComparisonRow
from lmlab.scoring.metric import Column, EvaluatedRuns, Metric


def true_nats(runs: EvaluatedRuns) -> float | None:
    """Nats per token of the true distribution; None where it is unknown, or where the runs do not
    score whole texts with end tokens, as it does."""
    whole = runs.convention.end and runs.convention.max_length is None
    if runs.truth is None or not whole:
        return None
    return runs.truth.nats / runs.first.summary.tokens


def _notes(rows: Sequence[ComparisonRow], corpus: Corpus) -> Iterator[str]:
    if corpus.truth is not None and any(row["floor"] is None for row in rows):
        yield (
            f"The entropy of {corpus.name} is a lower bound only where whole texts of its own "
            "are scored with their ends."
        )


METRIC = Metric(
    name="floor",
    explanation="floor is the nats per token of the true distribution on the same texts",
    compute=true_nats,
    lower_is_better=None,
    table=Column(title="floor", order=60),
    notes=_notes,
    in_legend=False,
)
