"""The few numbers that tell how a run is, and the sentence they make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from lmlab.diagnostics.doctor.evidence import Evidence, Inapplicable, Missing
from lmlab.diagnostics.doctor.measures import epochs_seen, unknown_share
from lmlab.diagnostics.doctor.records import Finding


def vitals_of(evidence: Evidence) -> dict[str, float]:
    """Numbers by name, in the order of their weight; what can't be had is left out."""
    measured: dict[str, Callable[[Evidence], float | None]] = {
        "best held-out loss": lambda e: e.history.best.loss if e.history.best else None,
        "last held-out loss": lambda e: e.history.held_out[-1].loss if e.history.held_out else None,
        "last training loss": lambda e: e.history.train[-1].loss if e.history.train else None,
        "epochs": epochs_seen,
        "steps": lambda e: float(e.history.steps),
        "training tokens": lambda e: float(e.texts.train.total_tokens),
        "parameters": lambda e: float(e.system.parameter_count),
        "learning rate": lambda e: _middle([w.rate for w in e.history.train]),
        "gradient norm": lambda e: _middle([w.gradient_norm for w in e.history.train]),
        "update ratio": lambda e: _middle([w.update_ratio for w in e.history.train]),
        "gradient kept a word further back": lambda e: e.distance_gradients.factor,
        "unknown share": lambda e: unknown_share(e.texts.held_out or e.texts.train),
    }
    found: dict[str, float] = {}
    for name, measure in measured.items():
        try:
            value = measure(evidence)
        except (Missing, Inapplicable):
            continue
        if value is not None:
            found[name] = value
    return found


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def verdict_of(evidence: Evidence, findings: Sequence[Finding], skipped: int) -> str:
    """One sentence: healthy with its vital numbers, or what was found."""
    checks = "1 check" if skipped == 1 else f"{skipped} checks"
    unseen = f" {checks} could not be made." if skipped else ""
    where = f"{evidence.card.name} on {evidence.config['corpus']['spec'] or 'an unknown corpus'}"
    if not findings:
        return f"Nothing unusual: {where}{_reached(evidence)}.{unseen}"
    serious = sum(finding.severity == "serious" for finding in findings)
    names = ", ".join(finding.name for finding in findings)
    count = f"{len(findings)} finding{'s' if len(findings) > 1 else ''}"
    grave = f", {serious} serious" if serious else ""
    return f"{where}{_reached(evidence)}: {count}{grave} ({names}).{unseen}"


def _reached(evidence: Evidence) -> str:
    try:
        history = evidence.history
    except Missing:
        return ""
    best = history.best
    if best is None:
        return f" made {history.steps:,} steps"
    beside = ""
    try:
        beside = ", ".join(f"{level.name} {level.value:.3f}" for level in evidence.levels.values())
        beside = f" ({beside})"
    except (Missing, Inapplicable):
        pass
    return (
        f" reached {best.loss:.3f} {evidence.unit} on {history.split}{beside} after "
        f"{history.tokens:,.0f} tokens"
    )
