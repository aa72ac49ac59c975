"""What the doctor tells: findings, and the whole examination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from lmlab.diagnosis.training_history import TrainingHistory

Severity = Literal["serious", "mild"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that a healthy run does not have."""

    name: str
    severity: Severity
    """serious: the run's figures mean little until it is mended; mild: they could be better."""
    observed: str
    """What was seen, with its number."""
    why: str
    """Why it matters."""
    suggestions: tuple[str, ...]
    """What to try, the likeliest first."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The numbers behind it, by name."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A loss to hold the run's own against, in nats per token on the split that was watched."""

    name: str
    value: float
    meaning: str


@dataclass(frozen=True, kw_only=True)
class ReferenceBand:
    """Between which held-out losses healthy runs of the same family lie, by tokens seen."""

    corpus: str
    family: str
    systems: tuple[str, ...]
    """What the reference runs were."""
    points: tuple[tuple[float, float, float], ...]
    """Tokens seen, lowest and highest loss."""

    def at(self, tokens: float) -> tuple[float, float] | None:
        """Lowest and highest loss after so many tokens; None before the first point.

        Between two points a straight line; after the last one its losses, which later ones of a
        healthy run do not exceed.
        """
        if not self.points or tokens < self.points[0][0]:
            return None
        for left, right in zip(self.points, self.points[1:], strict=False):
            if tokens <= right[0]:
                share = (tokens - left[0]) / (right[0] - left[0])
                low, high = (a + share * (b - a) for a, b in zip(left[1:], right[1:], strict=True))
                return low, high
        return self.points[-1][1], self.points[-1][2]


@dataclass(frozen=True, kw_only=True)
class SkippedCheck:
    """A check that was not made, and why."""

    check: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Examination:
    """A run, looked over."""

    run: str
    system: str
    corpus: str
    kind: str
    """What its scores are: see `lmlab.core.score_kind`."""
    unit: str
    """What the losses are counted in."""
    losses_comparable: bool
    """Whether training losses are of the same sort as held-out ones; else they are a contrast."""
    outcome: str
    """The system, its corpus and the loss it reached beside the levels."""
    verdict: str
    """The same, with what came of the checks."""
    key_figures: Mapping[str, float]
    """Numbers by name, healthy or not."""
    history: TrainingHistory
    levels: tuple[Baseline, ...]
    reference_band: ReferenceBand | None
    findings: tuple[Finding, ...]
    """Serious ones first."""
    skipped: tuple[SkippedCheck, ...]
    """Checks that could not be made, for want of something."""
    not_applicable: tuple[SkippedCheck, ...]
    """Checks that have no meaning for such a system or corpus."""
    checks: tuple[str, ...]
    """The checks that were made."""

    @property
    def healthy(self) -> bool:
        """Whether checks were made, and none of them found anything."""
        return bool(self.checks) and not self.findings

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {"healthy": self.healthy, **asdict(self)}
