"""Alternatives: items in which the right one of several texts should be the most probable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lmlab.scoring.minimal_pairs import TIE
from lmlab.scoring.suite import AnyScore, ItemResult, SuiteItem, TextRequest


@dataclass(frozen=True, kw_only=True)
class Alternatives(SuiteItem):
    """Texts that may follow a prefix; the first is the right one."""

    phenomenon: str
    paradigm: str
    texts: tuple[str, ...]
    prefix: str = ""
    human_preference: float | None = None
    """How strongly people prefer the first, where that is known."""

    def requests(self) -> Sequence[TextRequest]:
        """Each alternative after the prefix."""
        return [TextRequest(prefix=self.prefix, continuation=text) for text in self.texts]

    def result(self, scores: Sequence[AnyScore]) -> ItemResult:
        """The most probable one; scores within the tolerance `TIE` of it tie with it."""
        totals = [score.total for score in scores]
        best = max(totals)
        # Equality first: two scores of minus infinity differ by NaN.
        first = [i for i, total in enumerate(totals) if total == best or best - total <= TIE]
        right = 0 in first
        return ItemResult(
            phenomenon=self.phenomenon,
            paradigm=self.paradigm,
            credit=1 / len(first) if right else 0.0,
            first_credit=float(right),
            tie=right and len(first) > 1,
            unknown=any(score.unknown > 0 for score in scores),
            prediction=self.texts[first[0]],
            preference=_share_of_first(totals, best),
            human_preference=self.human_preference,
        )


def _share_of_first(totals: Sequence[float], best: float) -> float:
    """Softmax of the log-probabilities at the first one; those that tie with the best are equal,
    so that rounding gives an indifferent model no ranking."""
    if math.isinf(best):
        return 1 / len(totals)
    weights = [1.0 if best - total <= TIE else math.exp(total - best) for total in totals]
    return weights[0] / sum(weights)
