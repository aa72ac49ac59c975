"""`lmlab compare RUN... [CORPUS]`: held-out losses with their kind, intervals and tests."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from lmlab.cli.arguments import split_models_and_corpus
from lmlab.cli.options import JsonOption, NoVerify
from lmlab.cli.output import print, print_json, show_table, text_progress_bar
from lmlab.cli.terminal import terminal
from lmlab.verbs.evaluation import compare as compare_runs


@terminal(compare_runs, loads=True)
def compare(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN... [CORPUS]",
            help="Runs or Hub folders, then the corpus to compare on (or --data).",
        ),
    ],
    as_json: JsonOption = False,
    no_verify: NoVerify = False,
    *,
    data: str | None,
    out: str | None,
    csv: str | None,
    **options: Any,
) -> None:
    runs, data = split_models_and_corpus(arguments, data, "compare")

    from lmlab.scoring.comparison_tables import comparison_json as record
    from lmlab.scoring.comparison_tables import rich_differences, rich_table

    with text_progress_bar("comparing", results_follow=True) as progress:
        comparison = compare_runs(
            runs,
            data=data,
            out=out,
            csv=csv,
            progress=lambda run, tokens: progress(tokens),
            **options,
        )
    if as_json:
        print_json(record(comparison))
    else:
        show_table(rich_table(comparison))
        for table in rich_differences(comparison):
            print()
            show_table(table)
        for note in comparison.notes:
            print(f"- {note}")
    if out is not None:
        print(f"written: {out}", file=sys.stderr)
    if csv is not None:
        from lmlab.scoring.comparison_csv import differences_file

        files = f"{csv} and {differences_file(csv)}" if comparison.differences else csv
        print(f"written: {files}", file=sys.stderr)
