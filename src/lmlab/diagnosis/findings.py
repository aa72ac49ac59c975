"""Diagnosis records of a run: findings, baselines, reference band, skipped checks, the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from lmlab.diagnosis.training_history import TrainingHistory

Severity = Literal["serious", "mild"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A symptom that a healthy run does not have."""

    name: str
    severity: Severity
    """serious: the run's results mean little until it is fixed; mild: they could be better."""
    observed: str
    """The observation, with its number."""
    why: str
    """Why it matters."""
    suggestions: tuple[str, ...]
    """What to try, most promising first."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The underlying numbers, by name."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A baseline loss, in nats per token on the validation split."""

    name: str
    value: float
    meaning: str


@dataclass(frozen=True, kw_only=True)
class ReferenceBand:
    """Range of held-out losses of healthy runs of the same family, by tokens seen."""

    corpus: str
    family: str
    systems: tuple[str, ...]
    """Systems of the reference runs."""
    points: tuple[tuple[float, float, float], ...]
    """Tokens seen, lowest and highest loss."""

    def at(self, tokens: float) -> tuple[float, float] | None:
        """Lowest and highest loss after so many tokens; None before the first point.

        Linear between points; constant after the last, which a healthy run does not exceed later.
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
    """A check that was not run, and why."""

    check: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Examination:
    """The diagnosis of a run."""

    run: str
    system: str
    corpus: str
    kind: str
    """Kind of its scores: see `lmlab.core.score`."""
    unit: str
    """Unit of the losses."""
    losses_comparable: bool
    """Whether training and held-out losses are of the same kind; false for sampled losses (NCE)."""
    outcome: str
    """The system, its corpus and its final loss against the baselines."""
    verdict: str
    """The same, with the result of the checks."""
    key_figures: Mapping[str, float]
    """Key figures by name, healthy or not."""
    history: TrainingHistory
    levels: tuple[Baseline, ...]
    reference_band: ReferenceBand | None
    findings: tuple[Finding, ...]
    """Serious ones first."""
    skipped: tuple[SkippedCheck, ...]
    """Checks that could not be run, because something is missing."""
    not_applicable: tuple[SkippedCheck, ...]
    """Checks that do not apply to this system or corpus."""
    checks: tuple[str, ...]
    """The checks that were run."""

    @property
    def healthy(self) -> bool:
        """Whether checks were run and none has a finding."""
        return bool(self.checks) and not self.findings

    def as_dict(self) -> dict[str, Any]:
        """All fields as plain values, for JSON."""
        return {"healthy": self.healthy, **asdict(self)}
