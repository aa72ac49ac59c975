"""Text report of an examination."""

from __future__ import annotations

from collections.abc import Iterator

from lmlab.diagnosis.findings import (
    Examination,
    Finding,
)
from lmlab.diagnosis.key_figures import summarise_checks


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
