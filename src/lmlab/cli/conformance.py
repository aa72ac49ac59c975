"""`lmlab conformance NAME... [--check CHECK] [--list] [--json]`: the properties of a system."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.options import JsonOption
from lmlab.cli.output import console, print_json, print_table, step_progress_bar
from lmlab.cli.terminal import terminal
from lmlab.core.errors import UserError
from lmlab.core.system_files import resolve_system
from lmlab.verbs.conformance import conformance as run_suite

if TYPE_CHECKING:
    from lmlab.conformance.check import CheckResult, ConformanceReport


@terminal(run_suite, without=("system",))
def conformance(
    systems: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Systems, by name or file.")
    ] = None,
    list_checks: Annotated[
        bool, typer.Option("--list", help="List the checks and the property that each tests.")
    ] = False,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Exit codes: 0 no check failed; 1 a check failed; 2 error."""
    if list_checks:
        _print_checks(options["checks"], as_json)
        return
    if not systems:
        raise UserError(
            "conformance needs the name or the file of a system, as in lmlab conformance lstm; "
            "lmlab systems lists them, and --list the checks."
        )
    for name in systems:
        resolve_system(name)  # before anything takes time
    reports = []
    for name in systems:
        with step_progress_bar() as bar:
            report = run_suite(name, **options, progress=partial(bar, name))
        reports.append(report)
        if not as_json:
            _print_report(report)
    if as_json:
        print_json([report.as_dict() for report in reports])
    if not all(report.passed for report in reports):
        sys.exit(1)


def _print_checks(names: Sequence[str], as_json: bool) -> None:
    from lmlab.conformance.suite import find_checks

    checks = find_checks(names)
    if as_json:
        print_json(
            [{"check": one.name, "law": one.law, "property": one.property} for one in checks]
        )
        return
    rows = [(one.name, one.law, one.property) for one in checks]
    print_table(("check", "law", "property"), rows)


def _print_report(report: ConformanceReport) -> None:
    """A line per check that applies, the others by reason, the failures in full, the counts."""
    others = report.of("does not apply")
    rows = [
        (one.check, one.outcome, _seconds(one), _note(one))
        for one in report.results
        if one not in others
    ]
    print_table(("check", "outcome", "seconds", report.system), rows)
    screen = console()
    by_reason: dict[str, list[str]] = defaultdict(list)
    for result in others:
        by_reason[result.message].append(result.check)
    if (training := report.results[0]) in report.failures:
        screen.print(f"No other check was run ({len(others)}), as {training.check} failed.")
        by_reason.clear()
    for reason, names in by_reason.items():
        screen.print(f"Not applicable ({reason}): {', '.join(names)}.")
    for failure in report.failures:
        screen.print(f"\n{failure.check} failed: {failure.property}", style="bold", soft_wrap=True)
        screen.print(f"  {failure.message}", soft_wrap=True)
    style = "green" if report.passed else "bold red"
    screen.print(f"\n{report.summary()}", style=style, soft_wrap=True)


def _note(result: CheckResult) -> str:
    """What the check tests, or why the system is exempt."""
    return result.message if result.outcome == "exempt" else result.property


def _seconds(result: CheckResult) -> str:
    return "" if result.outcome == "exempt" else f"{result.seconds:.2f}"
