"""The message of a failed assertion names the property, the position and both numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lmlab.conformance.assertions import (
    assert_close,
    assert_equal,
    assert_samples_follow,
    assert_total_mass,
    assert_unchanged,
)
from lmlab.conformance.check import Failure

ONES = torch.ones(2, 3)
FAILURES: dict[str, tuple[Callable[[], None], str, dict[str, int | str]]] = {
    "close": (
        lambda: assert_close(
            ONES + torch.tensor([[0, 0, 0], [0, 0, 0.5]]),
            ONES,
            "scored together",
            atol=1e-5,
            axes=("text", "position"),
        ),
        "scored together: at text 1, position 2 expected 1, got 1.5 (1 of 6 differ).",
        {"text": 1, "position": 2},
    ),
    "equal": (
        lambda: assert_equal(ONES[0] * 2, ONES[0], "loaded", first=1, parameter="bias"),
        "loaded: at position 1 expected 1, got 2 (3 of 3 differ).",
        {"parameter": "bias", "position": 1},
    ),
    "not a number": (
        lambda: assert_equal(ONES[0] * torch.nan, ONES[0], "loaded"),
        "loaded: at position 0 expected 1, got nan (3 of 3 differ).",
        {"position": 0},
    ),
    "shape": (
        lambda: assert_close(ONES[0], ONES, "scored", atol=1.0),
        "scored: expected shape (2, 3), got (3,)",
        {},
    ),
    "hidden": (
        lambda: assert_unchanged(torch.zeros(3), ONES[0], torch.tensor([False, True, True]), 2),
        "position 1 depends on position 2, which it must not see: its log-probability was 1 and is "
        "0 with another token there.",
        {"position": 1, "changed position": 2},
    ),
    "mass": (
        lambda: assert_total_mass(0.9, 1234, exact=True),
        "probabilities sum to 0.9 over 1,234 sequences, expected 1.",
        {},
    ),
    "bound": (
        lambda: assert_total_mass(1.1, 10, exact=False),
        "probabilities sum to 1.1 over 10 sequences, expected at most 1.",
        {},
    ),
    "sampled": (
        lambda: assert_samples_follow({"a": 90, "b": 10}, {"a": 0.5, "b": 0.5}, 1e-9),
        "100 samples do not follow the scored probabilities (chi-square p = 1e-09): a was expected "
        "50.0 times and came 90 times.",
        {"tokens": "a"},
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failure_says_what_and_where(name: str) -> None:
    fail, sentence, where = FAILURES[name]
    with pytest.raises(Failure) as failed:
        fail()
    assert str(failed.value) == sentence
    assert failed.value.where == where


def test_true_assertions_pass() -> None:
    assert_close(ONES + 1e-6, ONES, "scored", atol=1e-5)
    assert_equal(ONES, ONES.clone(), "loaded")
    assert_unchanged(torch.zeros(3), ONES[0], torch.zeros(3, dtype=torch.bool), 2)
    assert_total_mass(1.0, 10, exact=True)
    assert_total_mass(0.5, 10, exact=False)
