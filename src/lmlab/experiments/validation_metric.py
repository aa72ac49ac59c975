"""A metric of `lmlab compare` on the validation split, to select trials by."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmlab.core.errors import UserError, unknown_name
from lmlab.data.corpus import open_corpus
from lmlab.scoring.metric import Metric
from lmlab.scoring.metric_registry import all_metrics
from lmlab.scoring.model_comparison import compare_models
from lmlab.training.run_folder import load_run

LOSS = "loss"
"""The name of the validation loss, which is no metric of compare."""


def find_metric(name: str) -> Metric:
    """The metric of that name; a UserError where neither more nor less of it is better."""
    metrics = all_metrics()
    ranked = [key for key, metric in metrics.items() if metric.lower_is_better is not None]
    if name not in metrics:
        raise unknown_name("figure to select by", name, [LOSS, *ranked])
    if name not in ranked:
        raise UserError(
            f"{name} has no better end to select by; choose from {', '.join([LOSS, *ranked])}."
        )
    return metrics[name]


def validation_metric(run: Path, options: Mapping[str, Any], name: str) -> tuple[float | None, str]:
    """The metric of a run on the validation split of the corpus that it was trained on, and the
    kind of score that it is of."""
    corpus = open_corpus(
        options["data"],
        errors=options.get("errors") or "strict",
        seed=options.get("data_seed") or 0,
    )
    [row] = compare_models([load_run(run)], corpus, "validation", resamples=1).rows
    value = row.values.get(name)
    if value is None:
        raise UserError(f"{name} is undefined for {row.system} on {corpus.name}; select by loss.")
    return float(value), row.kind
