"""Corrections of p-values against arithmetic by hand; statsmodels is in tests/integration."""

from __future__ import annotations

import pytest

from lmlab.scoring.multiple_comparisons import corrected_p_values, correction_clause
from lmlab.scoring.paired_differences import enough_resamples, resolution_notes

P_VALUES = [0.04, 0.01, 0.03, 0.005]


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        # Sorted 0.005, 0.01, 0.03, 0.04: times 4, 3, 2, 1 is 0.02, 0.03, 0.06, 0.04; never falling.
        ("holm", [0.06, 0.03, 0.06, 0.02]),
        ("bonferroni", [0.16, 0.04, 0.12, 0.02]),
        # Times 4/1, 4/2, 4/3, 4/4 is 0.02, 0.02, 0.04, 0.04; never rising from the end.
        ("benjamini-hochberg", [0.04, 0.02, 0.04, 0.02]),
        ("none", P_VALUES),
    ],
)
def test_corrections_by_hand(correction, expected):
    assert corrected_p_values(P_VALUES, correction) == pytest.approx(expected)


def test_corrected_p_values_are_at_most_one_and_ties_are_equal():
    assert corrected_p_values([0.5, 0.5, 0.9], "holm") == [1.0, 1.0, 1.0]
    assert corrected_p_values([0.02, 0.02], "holm") == [0.04, 0.04]
    assert corrected_p_values([], "holm") == []


def test_clause_says_over_how_many_tests():
    assert "single test" in correction_clause("holm", 1)
    assert correction_clause("holm", 21) == "p-values corrected over 21 tests (Holm)"
    assert "not corrected" in correction_clause("none", 3)


def test_resamples_allow_a_significant_p_value_after_correction():
    assert enough_resamples(10) == 2000, "as many as before for five models"
    for tests in (1, 21, 100):
        assert tests * 2 / (enough_resamples(tests) + 1) <= 0.01
    # 50 models: 1225 tests · 2 / 20,001 = 0.12
    [note] = resolution_notes(1225, None, "holm")
    assert "1225 tests" in note and "0.12" in note
    assert not list(resolution_notes(1225, None, "benjamini-hochberg"))
