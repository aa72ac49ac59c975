"""`lmlab pairs RUN FILE...`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lmlab.cli.options import Json, Run
from lmlab.cli.output import print_json, print_table

if TYPE_CHECKING:
    from lmlab.scoring.pairs import Accuracy, PairsReport


def pairs(
    run: Run,
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="JSON lines of sentence_good and sentence_bad."),
    ],
    as_json: Json = False,
) -> None:
    """Judge minimal pairs: how often is the good sentence more probable than the bad one?"""
    from lmlab.api import load

    report = load(run).pairs(*files)
    if as_json:
        print_json(report.as_dict())
    else:
        print_report(report)


def print_report(report: PairsReport) -> None:
    """Accuracy of all pairs, by file and by phenomenon."""
    from lmlab.diagnostics.wording import convention_words

    rows = [_row("all", report.overall)]
    rows += [_row("file", each) for each in report.files]
    rows += [_row("phenomenon", each) for each in report.phenomena]
    rows += [_row("paradigm", each) for each in report.paradigms]
    header = ("by", "name", "accuracy", "± error", "by mean token", "pairs", "ties", "with unknown")
    print_table(header, rows)
    print(f"\nkind {report.kind}; ties counted as wrong; {convention_words(report.convention)}")


def _row(what: str, each: Accuracy) -> tuple[str, ...]:
    return (
        what,
        "" if what == "all" else each.name,
        f"{each.accuracy:.3f}",
        f"{each.standard_error:.3f}",
        f"{each.accuracy_per_token:.3f}",
        str(each.pairs),
        str(each.ties),
        str(each.with_unknown),
    )
