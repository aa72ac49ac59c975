"""A diagnosis in a notebook: findings with their advice, baselines, the loss curve."""

from __future__ import annotations

from lmlab.core.html import Html, join_html, plain_table, tag, visible_text
from lmlab.diagnosis.causality import matrix_lines
from lmlab.diagnosis.examination_figures import loss_figure
from lmlab.diagnosis.findings import Examination, Finding, SkippedCheck
from lmlab.diagnosis.text_report import baseline_rows, checks_line
from lmlab.plotting.notebook_figures import notebook_figure


def examination_body(examination: Examination) -> Html:
    """The outcome, the findings, the loss curve with its baselines, and what was not checked."""
    history, causality = examination.history, examination.causality
    parts = [tag("p", tag("b", visible_text(f"{examination.outcome}.")))]
    parts += map(finding_html, examination.findings)
    if causality is not None:
        parts += [tag("p", f"causality: {visible_text(line)}") for line in causality.sentences]
        if causality.leaks:
            parts.append(tag("pre", visible_text("\n".join(matrix_lines(causality)))))
    if history.train or history.held_out:
        parts.append(notebook_figure(loss_figure(examination)))
    if examination.levels:
        rows = [
            (name, f"{value:.3f}", meaning) for name, value, meaning in baseline_rows(examination)
        ]
        heading = ("baseline", "nats per token", "")
        bold = [name == "this run" for name, *_ in rows]
        parts.append(plain_table(heading, rows, numbers=(False, True, False), bold=bold))
    parts.append(tag("p", tag("b", visible_text(checks_line(examination)))))
    left_out = [_skipped("not checked", check) for check in examination.skipped]
    left_out += [_skipped("does not apply", check) for check in examination.not_applicable]
    if left_out:
        parts.append(tag("details", tag("summary", "What was not checked"), tag("ul", *left_out)))
    return join_html(parts)


def finding_html(finding: Finding) -> Html:
    """A finding: what was seen, why it matters, what to try."""
    return tag(
        "div",
        tag("div", tag("b", visible_text(f"{finding.severity}: {finding.name}"))),
        tag("div", visible_text(f"seen: {finding.observed}")),
        tag("div", visible_text(f"why: {finding.why}")),
        tag("div", "try:"),
        tag("ul", *(tag("li", visible_text(each)) for each in finding.suggestions)),
        class_=finding.severity,
    )


def _skipped(what: str, check: SkippedCheck) -> Html:
    return tag("li", visible_text(f"{what}: {check.check} ({check.reason})"))
