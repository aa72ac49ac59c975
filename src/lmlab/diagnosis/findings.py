"""Diagnosis records: training history, findings, baselines, reference band, the examination."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from lmlab.core.html import Html
from lmlab.core.notebook import NotebookRecord, scalar_fields
from lmlab.diagnosis.causality import CausalityReport, Cause
from lmlab.training.training_logs import NOT_FINITE


@dataclass(frozen=True, kw_only=True)
class TrainingWindow:
    """A window of training steps."""

    step: int
    """Its last step."""
    epoch: int
    tokens: float
    """Tokens seen so far."""
    loss: float
    """Mean over the window, in nats per token, dropout included."""
    count: float
    """Predictions in the window."""
    learning_rate: float | None = None
    """Learning rate of its last step …"""
    gradient_norm: float | None = None
    """… norm of its gradient before clipping …"""
    update_ratio: float | None = None
    """… and ‖update‖ / ‖weights‖; None in older runs."""
    embedding_norms: Mapping[str, float] = field(default_factory=dict)
    """Mean norm of the embeddings, by table."""


@dataclass(frozen=True, kw_only=True)
class ValidationPoint:
    """An evaluation on held-out text."""

    step: int
    tokens: float
    """Training tokens seen before it."""
    loss: float


@dataclass(frozen=True, kw_only=True)
class TrainingHistory:
    """All metrics logged while a run was trained."""

    train: tuple[TrainingWindow, ...] = ()
    held_out: tuple[ValidationPoint, ...] = ()
    split: str | None = None
    """The split evaluated: validation, or test if there is no other."""
    not_finite: bool = False
    """Whether training stopped because its loss or gradient was not finite."""

    @property
    def tokens(self) -> float:
        """Total training tokens seen."""
        return self.train[-1].tokens if self.train else 0.0

    @property
    def steps(self) -> int:
        steps = [window.step for window in self.train] + [point.step for point in self.held_out]
        return max(steps, default=0)

    @property
    def best(self) -> ValidationPoint | None:
        """The evaluation with the lowest loss."""
        return min(self.held_out, key=lambda point: point.loss, default=None)

    def train_loss(self, low: float, high: float) -> float | None:
        """Mean training loss over the windows that end after `low` and up to `high` tokens."""
        inside = [window for window in self.train if low < window.tokens <= high]
        count = sum(window.count for window in inside)
        return sum(w.loss * w.count for w in inside) / count if count else None


def parse_training_history(lines: Sequence[Mapping[str, Any]]) -> TrainingHistory:
    """The history in the lines of a metrics.jsonl; non-finite values are dropped."""
    train: list[TrainingWindow] = []
    held_out: list[ValidationPoint] = []
    split, tokens_seen = None, 0.0
    for line in lines:
        loss, event = _number(line.get("loss")), line.get("event")
        if loss is None:
            continue
        if event == "train":
            count = _number(line.get("count")) or 0.0
            tokens_seen += count
            train.append(_window(line, loss, count, tokens_seen))
        elif event in ("validation", "test"):
            split = str(event)
            held_out.append(ValidationPoint(step=int(line["step"]), tokens=tokens_seen, loss=loss))
    return TrainingHistory(
        train=tuple(train),
        held_out=tuple(held_out),
        split=split,
        not_finite=bool(lines) and lines[-1].get("event") == NOT_FINITE,
    )


def _window(line: Mapping[str, Any], loss: float, count: float, tokens: float) -> TrainingWindow:
    norms = line.get("vector_norms")
    return TrainingWindow(
        step=int(line["step"]),
        epoch=int(line.get("epoch", 0)),
        tokens=tokens,
        loss=loss,
        count=count,
        learning_rate=_number(line.get("learning_rate")),
        gradient_norm=_number(line.get("gradient_norm")),
        update_ratio=_number(line.get("update_ratio")),
        embedding_norms=dict(norms) if isinstance(norms, Mapping) else {},
    )


def _number(value: Any) -> float | None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if usable and math.isfinite(value) else None


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
class Examination(NotebookRecord):
    """The diagnosis of a run, or of a model from elsewhere, which has no training history."""

    run: str
    system: str
    corpus: str
    kind: str
    """Kind of its scores: see `lmlab.core.score`."""
    unit: str
    """Unit of the losses."""
    losses_comparable: bool
    """Whether training and held-out losses are of the same kind; false for a sampled loss, say."""
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
    causality: CausalityReport | None = None
    """What each prediction depends on; None if the system predicts no tokens of a text."""

    @property
    def healthy(self) -> bool:
        """Whether checks were run and none has a finding."""
        return bool(self.checks) and not self.findings

    def table_rows(self) -> Iterable[Mapping[str, Any]]:
        """A row for each finding; none if all is well."""
        for finding in self.findings:
            values = {"finding": finding.name, **scalar_fields(finding)}
            del values["name"]
            yield {**values, "suggestions": "; ".join(finding.suggestions)}

    def html_body(self) -> Html:
        """The report, with the loss curve."""
        from lmlab.diagnosis.notebook_report import examination_body

        return examination_body(self)

    def as_dict(self) -> dict[str, Any]:
        """All fields as plain values, for JSON."""
        causality = None if self.causality is None else self.causality.as_dict()
        return {"healthy": self.healthy, **asdict(self), "causality": causality}


LIKELY_REASONS: tuple[tuple[Cause, str], ...] = (
    ("later token", "look for a mean, deviation or normalisation over the dimension of time"),
    ("later token", "look at the attention mask: a position may see itself and earlier ones"),
    ("predicted token", "look at the shift: the input at a position must not hold its target"),
    ("padding", "look for a sum, mean or attention over all positions, padding included"),
    ("neighbour", "look for a mean or normalisation over the batch, in evaluation mode too"),
)
"""What to look for, by cause, the usual reasons first."""


def leak_finding(report: CausalityReport) -> Finding | None:
    """The finding of a causality report; None if there is no leak."""
    if report.verdict in ("causal", "bidirectional"):
        return None
    if report.verdict == "unstable":
        return Finding(
            name="unstable predictions",
            severity="mild",
            observed=report.summary[0],
            why="scores are not reproducible, and a leak can't be seen",
            suggestions=("look for dropout or sampling that evaluation mode does not switch off",),
            numbers={"noise": report.noise},
        )
    worst = report.leaks[0]
    causes = {leak.cause for leak in report.leaks}
    return Finding(
        name="leak",
        severity="serious",
        observed="; ".join(report.summary),
        why="its scores are no probabilities of the text: a model that sees what it is to predict "
        "gets losses that no honest one can reach, and generates worse than they promise",
        suggestions=tuple(advice for cause, advice in LIKELY_REASONS if cause in causes),
        numbers={
            "largest effect": worst.nats,
            "source": float(worst.source_position),
            "prediction": float(worst.predicted_position),
        },
    )
