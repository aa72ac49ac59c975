"""`lmlab compare RUN... [CORPUS] [--split test] [--out report.html]`: losses, tests, report."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lmlab.cli.arguments import split_models_and_corpus
from lmlab.cli.options import JsonOption, NoVerify, RunsErrorsOption, SplitOption
from lmlab.cli.output import print, print_json, show_table, text_progress_bar


def compare(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN... [CORPUS]",
            help="Runs or Hub folders, then the corpus to compare on (or --data).",
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(metavar="CORPUS", help="Corpus to compare on; the runs' own if not given."),
    ] = None,
    split: SplitOption = "test",
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Also write a file: .html (a report), .md, .tex or .json."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the bootstrap.")] = 0,
    as_json: JsonOption = False,
    errors: RunsErrorsOption = None,
    no_verify: NoVerify = False,
) -> None:
    """Compare trained models on one split: losses with their kind, intervals and tests."""
    runs, data = split_models_and_corpus(arguments, data, "compare")

    from lmlab.api import compare as compare_runs
    from lmlab.scoring.comparison_tables import comparison_json as record
    from lmlab.scoring.comparison_tables import rich_differences, rich_table

    with text_progress_bar("comparing", results_follow=True) as progress:
        comparison = compare_runs(
            runs,
            data=data,
            split=split,
            out=out,
            seed=seed,
            errors=errors,
            progress=lambda run, tokens: progress(tokens),
        )
    if as_json:
        print_json(record(comparison))
    else:
        show_table(rich_table(comparison))
        if comparison.differences:
            print()
            show_table(rich_differences(comparison))
        for note in comparison.notes:
            print(f"- {note}")
    if out is not None:
        print(f"written: {out}", file=sys.stderr)
