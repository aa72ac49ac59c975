"""Parallel corpora that runs were fine-tuned on, with their original splits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lmlab.core.errors import UserError
from lmlab.data.corpus import Corpus, Layout, Split, open_corpus
from lmlab.data.readers import Example
from lmlab.tasks.task import Row
from lmlab.tasks.task_registry import find_task
from lmlab.tasks.task_rows import is_corpus, read_splits
from lmlab.training.run_folder import TrainedModel


def evaluation_corpus(
    models: Sequence[TrainedModel],
    data: str | None,
    trained_on: Callable[[Sequence[TrainedModel]], Corpus],
) -> Corpus:
    """The corpus that translators are evaluated on: `data`, or what all of them were trained on.

    That is a run's fine-tuning corpus, for other runs what they were `trained_on`. The original
    split is reproduced, or the test split would contain training data.
    """
    tuned = [model for model in models if _tuned_on(model.config, data)]
    if not tuned:
        return trained_on(models)
    found = [_tuned_pairs(model) for model in tuned]
    others = [model for model in models if _trained_on(model.config, data) and model not in tuned]
    found += [trained_on(others)] if others else []
    if len({corpus.fingerprint() for corpus in found}) > 1:
        raise UserError(
            "these runs were trained on different pairs, or on different splits of the same ones; "
            "give --data to evaluate them on, or evaluate them one by one."
        )
    return found[0]


def _tuned_on(config: Mapping[str, Any], data: str | None) -> bool:
    """Whether a run was fine-tuned for generation, on that data or on any."""
    task = config.get("task")
    return task is not None and not task.get("head", True) and data in (None, task["data"])


def _trained_on(config: Mapping[str, Any], data: str | None) -> bool:
    """Whether a run was trained here, on that data or on any."""
    corpus = config["corpus"]
    return bool(corpus["fingerprint"]) and data in (None, corpus["spec"])


def _tuned_pairs(model: TrainedModel) -> Corpus:
    task, split_by = model.config["task"], model.config.get("rows", {})
    data = str(task["data"])
    try:
        if is_corpus(data):
            return open_corpus(data, **split_by)
        splits = read_splits(data, find_task(task["name"]), **split_by)
    except UserError as error:
        raise UserError(
            f"the data that {model.name} was fine-tuned on can't be read here "
            f"({str(error).rstrip('.')}); give its path by --data."
        ) from error
    return Corpus(
        name=data,
        splits={name: _split(name, rows) for name, rows in splits.items() if rows},
        layout=Layout(kind="pairs"),
    )


def _split(name: str, rows: Sequence[Row]) -> Split:
    content = hashlib.blake2b(json.dumps(rows, sort_keys=True).encode(), digest_size=16)
    pairs = [Example(str(row["target"]), condition=str(row["source"])) for row in rows]
    return Split.from_list(pairs, identity=f"rows:{content.hexdigest()}", name=name)
