"""`score`, `encode`, `translate` and `fill` with `--out`: a large file, divided among processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.output import print, print_json, step_progress_bar
from lmlab.cli.text_inputs import file_or_texts
from lmlab.core.errors import UserError
from lmlab.experiments.large_files.file_options import FileOptions

if TYPE_CHECKING:
    from lmlab.experiments.large_files.run_file import FileResult

OutOption = Annotated[
    str | None,
    typer.Option(
        "--out",
        metavar="OUT",
        help="Write a row for each result of FILE to this .jsonl, .csv or .parquet file, a path or "
        "URL; for large files, see docs/large-files.md.",
    ),
]
OF_FILES = {spec.name for spec in fields(FileOptions)} - {"errors", "language"}


def take_file_options(options: dict[str, Any], out: object, errors: str) -> dict[str, Any]:
    """Move the options of large files out of those of a command, which has them only with OUT."""
    taken = {name: options.pop(name) for name in [*options] if name in OF_FILES}
    defaults = vars(FileOptions())
    for name, value in taken.items():
        if out is None and value != defaults[name]:
            raise UserError(
                f"--{name.replace('_', '-')} is for large files; give --out a file for the results."
            )
    return taken | {"errors": errors}


def file_of(
    arguments: Sequence[str] | None,
    text: Sequence[str] | None,
    named_file: str | None,
    refused: Mapping[str, object],
) -> str:
    """The input of a command with OUT; a UserError for texts and for options that are `refused`."""
    for flag, value in refused.items():
        if value:
            raise UserError(f"{flag} does not apply to a large file (--out); remove it.")
    file, texts = file_or_texts(arguments, text, named_file)
    if file is None or file == "-" or texts:
        raise UserError("--out takes the results of a file; give a FILE.")
    return file


def write_file(
    verb: Callable[..., FileResult], *subjects: Any, as_json: bool, **options: Any
) -> None:
    """Call a verb of large files, with a progress bar over the chunks, and report."""
    with step_progress_bar() as report:
        result = verb(*subjects, report=report, **options)
    if not result.finished:
        print("lmlab: stopped; run the same command again to continue.", file=sys.stderr)
        sys.exit(130)
    if as_json:
        print_json(result.as_dict())
        return
    from lmlab.scoring.formatting import describe_summary

    for model, summary in result.summaries.items():
        print(f"{model}: {describe_summary(summary)}")
    print(f"{result.texts:,} texts of {result.lines:,} lines, {result.rows:,} rows: {result.out}")
