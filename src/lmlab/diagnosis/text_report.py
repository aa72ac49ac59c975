"""Text report of an examination."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from lmlab.diagnosis.findings import Examination, Finding, SkippedCheck
from lmlab.diagnosis.measurements import epochs_seen, unknown_token_rate
from lmlab.diagnosis.run_evidence import MissingEvidence, NotApplicable, RunEvidence


def compute_key_figures(evidence: RunEvidence) -> dict[str, float]:
    """Key figures by name, most important first, omitting what is unavailable."""
    measured: dict[str, Callable[[RunEvidence], float | None]] = {
        "best held-out loss": lambda e: e.history.best.loss if e.history.best else None,
        "last held-out loss": lambda e: e.history.held_out[-1].loss if e.history.held_out else None,
        "last training loss": lambda e: e.history.train[-1].loss if e.history.train else None,
        "epochs": epochs_seen,
        "steps": lambda e: float(e.history.steps),
        "training tokens": lambda e: float(e.texts.train.total_tokens),
        "parameters": lambda e: float(e.system.parameter_count),
        "learning rate": lambda e: _middle([w.learning_rate for w in e.history.train]),
        "gradient norm": lambda e: _middle([w.gradient_norm for w in e.history.train]),
        "update ratio": lambda e: _middle([w.update_ratio for w in e.history.train]),
        "gradient kept a word further back": lambda e: e.distance_gradients.factor,
        "unknown share": lambda e: unknown_token_rate(e.texts.held_out or e.texts.train),
    }
    found: dict[str, float] = {}
    for name, measure in measured.items():
        try:
            value = measure(evidence)
        except (MissingEvidence, NotApplicable):
            continue
        if value is not None:
            found[name] = value
    return found


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def describe_outcome(evidence: RunEvidence) -> str:
    """The system, its corpus and its final loss against the baselines."""
    where = f"{evidence.card.name} on {evidence.config['corpus']['spec'] or 'an unknown corpus'}"
    return f"{where}{_reached(evidence)}"


def summarise_checks(
    findings: Sequence[Finding],
    made: int,
    skipped: Sequence[SkippedCheck],
    inapplicable: Sequence[SkippedCheck],
) -> str:
    """Summary of the checks: "No finding among 18 checks; 3 were not made: …"."""
    told = _made_sentence(findings, made)
    if skipped:
        told += f"; {len(skipped)} {'was' if len(skipped) == 1 else 'were'} not made{_why(skipped)}"
    if inapplicable:
        does = "does" if len(inapplicable) == 1 else "do"
        told += f"; {len(inapplicable)} {does} not apply to this system or corpus"
    return f"{told}."


def _made_sentence(findings: Sequence[Finding], made: int) -> str:
    if not made:
        return "Nothing was checked"
    serious = sum(finding.severity == "serious" for finding in findings)
    names = ", ".join(finding.name for finding in findings)
    count = "No finding" if not findings else _counted(len(findings), "finding")
    grave = f", {serious} serious" if serious else ""
    named = f" ({names})" if names else ""
    return f"{count}{grave} among {_counted(made, 'check')}{named}"


def _why(skipped: Sequence[SkippedCheck]) -> str:
    reasons = Counter(each.reason for each in skipped).most_common()
    if len(reasons) == 1:
        return f", because {reasons[0][0]}"
    return ": " + "; ".join(f"{number} because {reason}" for reason, number in reasons)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _reached(evidence: RunEvidence) -> str:
    try:
        history = evidence.history
    except MissingEvidence:
        return ""
    best = history.best
    if best is None:
        return f" made {history.steps:,} steps"
    beside = ""
    try:
        beside = ", ".join(f"{level.name} {level.value:.3f}" for level in evidence.levels.values())
        beside = f" ({beside})"
    except (MissingEvidence, NotApplicable):
        pass
    return (
        f" reached {best.loss:.3f} {evidence.unit} on {history.split}{beside} after "
        f"{history.tokens:,.0f} tokens"
    )


def report_lines(examination: Examination) -> Iterator[tuple[str, str]]:
    """The lines of the report, each with its print style ('' for none)."""
    yield f"{examination.outcome}.", "bold"
    yield from _beside(examination)
    for finding in examination.findings:
        yield "", ""
        yield from _finding(finding)
    if examination.skipped or examination.not_applicable:
        yield "", ""
    for each in examination.skipped:
        yield f"not checked: {each.check} ({each.reason})", "dim"
    for each in examination.not_applicable:
        yield f"does not apply: {each.check} ({each.reason})", "dim"
    yield "", ""
    yield checks_line(examination), "bold"


def checks_line(examination: Examination) -> str:
    """How many checks were run, and their result."""
    return summarise_checks(
        examination.findings,
        len(examination.checks),
        examination.skipped,
        examination.not_applicable,
    )


def _beside(examination: Examination) -> Iterator[tuple[str, str]]:
    if examination.levels:
        yield "", ""
        yield "baselines of the curve, in nats per token:", ""
        best = examination.history.best
        rows = [(level.name, level.value, level.meaning) for level in examination.levels]
        if best is not None:
            rows.append(("this run", best.loss, f"at its best, step {best.step:,}"))
        for name, value, meaning in sorted(rows, key=lambda row: -row[1]):
            yield f"  {value:8.3f}  {name:<9} {meaning}", "bold" if name == "this run" else ""
    band, history = examination.reference_band, examination.history
    expected = band.at(history.tokens) if band is not None else None
    if band is not None and expected is not None:
        low, high = expected
        runs = f"healthy runs ({', '.join(band.systems)})"
        yield f"  by now {runs} have {low:.3f} to {high:.3f}", ""


def _finding(finding: Finding) -> Iterator[tuple[str, str]]:
    style = "bold red" if finding.severity == "serious" else "bold yellow"
    yield f"{finding.severity}: {finding.name}", style
    yield f"  seen  {finding.observed}", ""
    yield f"  why   {finding.why}", ""
    for place, attempt in enumerate(finding.suggestions):
        yield f"  {'try ' if place == 0 else '    '}  {attempt}", ""
