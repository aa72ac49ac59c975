"""Corrections of p-values equal those of statsmodels."""

from __future__ import annotations

import numpy as np
import pytest

from lmlab.scoring.multiple_comparisons import corrected_p_values

multitest = pytest.importorskip(
    "statsmodels.stats.multitest", reason="statsmodels is an extra: run make test-integration"
)
THEIRS = {"holm": "holm", "bonferroni": "bonferroni", "benjamini-hochberg": "fdr_bh"}


@pytest.mark.parametrize("correction", THEIRS)
@pytest.mark.parametrize("tests", [1, 2, 45, 300])
def test_corrections_equal_statsmodels(correction, tests: int) -> None:
    generator = np.random.default_rng(tests)
    # Small ones, ties and large ones.
    p_values = np.round(generator.random(tests) ** 4, 3)
    expected = multitest.multipletests(p_values, method=THEIRS[correction])[1]
    assert corrected_p_values(p_values.tolist(), correction) == pytest.approx(expected.tolist())
