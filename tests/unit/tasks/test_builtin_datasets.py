"""Built-in datasets: valid rows, disjoint splits, balanced labels."""

from __future__ import annotations

from collections import Counter

import pytest

from lmlab.tasks.builtin_datasets import BUILTIN_DATASETS, load_builtin_rows
from lmlab.tasks.task_registry import find_task


@pytest.mark.parametrize("name", BUILTIN_DATASETS)
def test_rows_are_valid_and_splits_disjoint(name: str):
    task, splits = load_builtin_rows(name)
    kind = find_task(task)
    seen = {}
    for split, rows in splits.items():
        assert len(rows) >= 100
        for row in rows:
            assert kind.check_row(row) == row
        seen[split] = {str(sorted(row.items())) for row in rows}
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["validation"]


def test_hypernym_labels_are_balanced():
    rows = load_builtin_rows("gloss-hypernym")[1]["train"]
    true = sum(row["label"] == "hypernym" for row in rows)
    # Four standard errors of a fair coin.
    assert abs(true / len(rows) - 0.5) < 4 * 0.5 / len(rows) ** 0.5


def test_capitals_splits_have_disjoint_countries():
    splits = load_builtin_rows("capitals-span")[1]
    trained = {row["question"] for row in splits["train"]}
    assert not trained & {row["question"] for row in splits["test"]}


def test_part_of_speech_labels_are_wordnets():
    counts = Counter(row["label"] for row in load_builtin_rows("gloss-part-of-speech")[1]["train"])
    assert set(counts) == {"noun", "verb", "adj", "adv"}
    assert counts["noun"] > counts["adj"] > counts["adv"]
