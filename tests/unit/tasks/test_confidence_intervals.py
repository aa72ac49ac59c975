"""Confidence intervals of task metrics, and the warning against the majority class."""

from __future__ import annotations

import math

import pytest

from lmlab.tasks.classification import Classification
from lmlab.tasks.confidence_intervals import (
    Z,
    bootstrap_intervals,
    measure_answers,
    wilson_interval,
)
from lmlab.tasks.generation import Generation
from lmlab.tasks.span_extraction import SpanExtraction
from lmlab.tasks.tagging import Tagging


@pytest.mark.parametrize(("right", "total"), [(0, 10), (3, 10), (81, 263), (10, 10)])
def test_wilson_interval_inverts_the_score_test(right: int, total: int) -> None:
    for end in wilson_interval(right, total):
        if 0 < end < 1:
            score = abs(right / total - end) / math.sqrt(end * (1 - end) / total)
            assert math.isclose(score, Z, rel_tol=1e-9)
    low, high = wilson_interval(right, total)
    assert low <= right / total <= high
    assert (low == 0) == (right == 0) and (high == 1) == (right == total)


def test_wilson_interval_matches_newcombe_1998() -> None:
    # Newcombe 1998, Two-sided confidence intervals for the single proportion: 81/263, 15/148.
    assert [round(end, 4) for end in wilson_interval(81, 263)] == [0.2553, 0.3662]
    assert [round(end, 4) for end in wilson_interval(15, 148)] == [0.0624, 0.1605]
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_bootstrap_of_a_proportion_is_close_to_wilson() -> None:
    expected, predicted = ["a"] * 400, ["a"] * 300 + ["b"] * 100
    ends = bootstrap_intervals(Classification.compute_metrics, expected, predicted, ["accuracy"])[
        "accuracy"
    ]
    assert ends == pytest.approx(wilson_interval(300, 400), abs=0.01)
    assert (
        ends
        == bootstrap_intervals(Classification.compute_metrics, expected, predicted, ["accuracy"])[
            "accuracy"
        ]
    )


@pytest.mark.parametrize(
    ("right_a", "right_b", "message"),
    [
        (35, 15, "is below that of the majority class"),
        (42, 20, "not clearly better"),
        (60, 40, None),
    ],
)
def test_warns_if_accuracy_does_not_beat_the_majority(
    right_a: int, right_b: int, message: str | None
) -> None:
    expected = ["a"] * 60 + ["b"] * 40  # always a: 0.600
    predicted = ["a"] * right_a + ["b"] * (60 - right_a) + ["b"] * right_b + ["a"] * (40 - right_b)
    measured = measure_answers(Classification, expected, predicted)
    assert measured.metrics["accuracy"] == (right_a + right_b) / 100
    assert set(measured.intervals) == {"accuracy", "macro_f1"}
    if message is None:
        assert measured.warnings == ()
    else:
        [sentence] = measured.warnings
        assert message in sentence and "0.600" in sentence


def test_every_metric_lies_in_its_interval() -> None:
    tagged = [["B-X", "O"], ["O", "O"], ["B-X", "I-X"]] * 5, [["B-X", "O"], ["O", "B-X"]] * 7
    cases = (
        (Tagging, tagged[0], [*tagged[1], ["O", "O"]], {"f1", "accuracy"}),
        (SpanExtraction, ["a b", "c"] * 6, ["a", "c"] * 6, {"exact_match", "f1"}),
        (
            Generation,
            ["a b", "c d"] * 6,
            ["a b", "c e"] * 6,
            {"exact_match", "rouge1", "rouge2", "rougeL"},
        ),
    )
    for task, expected, predicted, names in cases:
        measured = measure_answers(task, expected, predicted)
        assert set(measured.intervals) == names
        for name, (low, high) in measured.intervals.items():
            assert low <= measured.metrics[name] <= high
            assert low < high
