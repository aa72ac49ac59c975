"""Text report of a run's diagnosis: key figures, baselines, findings, summary of the checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from lmlab.diagnosis.causality import matrix_lines
from lmlab.diagnosis.findings import Examination, Finding, SkippedCheck
from lmlab.diagnosis.measurements import epochs_seen, unknown_token_rate
from lmlab.diagnosis.run_evidence import MissingEvidence, NotApplicable, RunEvidence


def compute_key_figures(evidence: RunEvidence) -> dict[str, float]:
    """Key figures by name, most important first, omitting what is unavailable."""
    measures: dict[str, Callable[[RunEvidence], float | None]] = {
        "best held-out loss": lambda e: e.history.best.loss if e.history.best else None,
        "last held-out loss": lambda e: e.history.held_out[-1].loss if e.history.held_out else None,
        "last training loss": lambda e: e.history.train[-1].loss if e.history.train else None,
        "epochs": epochs_seen,
        "steps": lambda e: float(e.history.steps),
        "training tokens": lambda e: float(e.texts.train.total_tokens),
        "parameters": lambda e: float(e.system.parameter_count),
        "learning rate": lambda e: _median_of([w.learning_rate for w in e.history.train]),
        "gradient norm": lambda e: _median_of([w.gradient_norm for w in e.history.train]),
        "update ratio": lambda e: _median_of([w.update_ratio for w in e.history.train]),
        "gradient kept a word further back": lambda e: e.distance_gradients.factor,
        "unknown share": lambda e: unknown_token_rate(e.texts.held_out or e.texts.train),
    }
    figures: dict[str, float] = {}
    for name, measure in measures.items():
        try:
            value = measure(evidence)
        except (MissingEvidence, NotApplicable):
            continue
        if value is not None:
            figures[name] = value
    return figures


def _median_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def describe_outcome(evidence: RunEvidence) -> str:
    """The system, its corpus and its final loss against the baselines."""
    where = f"{evidence.card.name} on {evidence.config.corpus.spec or 'an unknown corpus'}"
    return f"{where}{_final_loss(evidence)}"


def summarise_checks(
    findings: Sequence[Finding],
    completed: int,
    skipped: Sequence[SkippedCheck],
    inapplicable: Sequence[SkippedCheck],
) -> str:
    """Summary of the checks: "No finding among 18 checks; 3 were not made: …"."""
    summary = _result_sentence(findings, completed)
    if skipped:
        were = "was" if len(skipped) == 1 else "were"
        summary += f"; {len(skipped)} {were} not made{_skip_reasons(skipped)}"
    if inapplicable:
        does = "does" if len(inapplicable) == 1 else "do"
        summary += f"; {len(inapplicable)} {does} not apply to this system or corpus"
    return f"{summary}."


def _result_sentence(findings: Sequence[Finding], completed: int) -> str:
    if not completed:
        return "Nothing was checked"
    serious = sum(finding.severity == "serious" for finding in findings)
    names = ", ".join(finding.name for finding in findings)
    count = "No finding" if not findings else _counted(len(findings), "finding")
    serious_count = f", {serious} serious" if serious else ""
    named = f" ({names})" if names else ""
    return f"{count}{serious_count} among {_counted(completed, 'check')}{named}"


def _skip_reasons(skipped: Sequence[SkippedCheck]) -> str:
    reasons = Counter(check.reason for check in skipped).most_common()
    if len(reasons) == 1:
        return f", because {reasons[0][0]}"
    return ": " + "; ".join(f"{number} because {reason}" for reason, number in reasons)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _final_loss(evidence: RunEvidence) -> str:
    try:
        history = evidence.history
    except MissingEvidence:
        return ""
    best = history.best
    if best is None:
        return f" made {history.steps:,} steps"
    try:
        levels = [f"{level.name} {level.value:.3f}" for level in evidence.levels.values()]
        baselines = f" ({', '.join(levels)})"
    except (MissingEvidence, NotApplicable):
        baselines = ""
    return (
        f" reached {best.loss:.3f} {evidence.unit} on {history.split}{baselines} after "
        f"{history.tokens:,.0f} tokens"
    )


def report_lines(examination: Examination) -> Iterator[tuple[str, str]]:
    """The lines of the report, each with its print style ('' for none)."""
    yield f"{examination.outcome}.", "bold"
    yield from _baseline_lines(examination)
    yield from _causality_lines(examination)
    for finding in examination.findings:
        yield "", ""
        yield from _finding_lines(finding)
    if examination.skipped or examination.not_applicable:
        yield "", ""
    for check in examination.skipped:
        yield f"not checked: {check.check} ({check.reason})", "dim"
    for check in examination.not_applicable:
        yield f"does not apply: {check.check} ({check.reason})", "dim"
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


def _baseline_lines(examination: Examination) -> Iterator[tuple[str, str]]:
    if examination.levels:
        yield "", ""
        yield "baselines of the curve, in nats per token:", ""
        for name, value, meaning in baseline_rows(examination):
            yield f"  {value:8.3f}  {name:<9} {meaning}", "bold" if name == "this run" else ""
    band, history = examination.reference_band, examination.history
    expected = band.at(history.tokens) if band is not None else None
    if band is not None and expected is not None:
        low, high = expected
        runs = f"healthy runs ({', '.join(band.systems)})"
        yield f"  by now {runs} have {low:.3f} to {high:.3f}", ""


def baseline_rows(examination: Examination) -> list[tuple[str, float, str]]:
    """The baselines and the run, highest loss first: name, loss, meaning."""
    best = examination.history.best
    rows = [(level.name, level.value, level.meaning) for level in examination.levels]
    if best is not None:
        rows.append(("this run", best.loss, f"at its best, step {best.step:,}"))
    return sorted(rows, key=lambda row: -row[1])


def _causality_lines(examination: Examination) -> Iterator[tuple[str, str]]:
    """The verdict on causality; the matrix where there is a leak or nothing else to show."""
    report = examination.causality
    if report is None:
        return
    yield "", ""
    for sentence in report.sentences:
        yield f"causality: {sentence}", ""
    if report.leaks or not examination.history.steps:
        yield "", ""
        for line in matrix_lines(report):
            yield line, ""


def _finding_lines(finding: Finding) -> Iterator[tuple[str, str]]:
    style = "bold red" if finding.severity == "serious" else "bold yellow"
    yield f"{finding.severity}: {finding.name}", style
    yield f"  seen  {finding.observed}", ""
    yield f"  why   {finding.why}", ""
    for index, suggestion in enumerate(finding.suggestions):
        yield f"  {'try ' if index == 0 else '    '}  {suggestion}", ""
