"""Correction of p-values for multiple comparisons: Holm, Bonferroni, Benjamini-Hochberg.

Importing this module imports neither torch nor numpy: a verb's signature names the corrections.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

Correction = Literal["holm", "bonferroni", "benjamini-hochberg", "none"]
"""holm and bonferroni bound the chance of one false positive, benjamini-hochberg their share."""


def corrected_p_values(p_values: Sequence[float], correction: Correction) -> list[float]:
    """The p-values of m tests, corrected; in their order, each between its p-value and 1.

    With p_(1) ≤ … ≤ p_(m):

        Holm 1979                     max over j ≤ i of (m - j + 1) p_(j)
        Bonferroni                    m p_(i)
        Benjamini and Hochberg 1995   min over j ≥ i of m p_(j) / j

    Holm's rejects at least what Bonferroni's does, under the same assumptions, which are none.
    """
    tests = len(p_values)
    order = sorted(range(tests), key=p_values.__getitem__)
    ordered = [p_values[index] for index in order]
    if correction == "holm":
        ordered = list(accumulate(((tests - i) * p for i, p in enumerate(ordered)), max))
    elif correction == "bonferroni":
        ordered = [tests * p for p in ordered]
    elif correction == "benjamini-hochberg":
        scaled = [tests * p / rank for rank, p in enumerate(ordered, 1)]
        ordered = list(accumulate(reversed(scaled), min))[::-1]
    corrected = dict(zip(order, ordered, strict=True))
    return [min(corrected[index], 1.0) for index in range(tests)]


def correction_clause(correction: Correction, tests: int) -> str:
    """How p-values were corrected, as a clause."""
    if tests == 1:
        return "p of a single test, which needs no correction"
    if correction == "none":
        return f"p-values of {tests} tests, not corrected for multiple comparisons"
    by = {"holm": "Holm", "bonferroni": "Bonferroni", "benjamini-hochberg": "Benjamini-Hochberg"}
    return f"p-values corrected over {tests} tests ({by[correction]})"
