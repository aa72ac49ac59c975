"""`lmlab runs [FOLDER]`: list runs; `lmlab runs show|diff|tag|rm`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from lmlab.cli.options import JsonOption
from lmlab.cli.output import print, print_json, printable
from lmlab.cli.terminal import terminal
from lmlab.cli.verb_groups import Verbs
from lmlab.core.errors import UserError
from lmlab.verbs import runs as verbs

LIST = "list"
GAP = "  "


class RunsVerbs(Verbs):
    """The commands on runs; without the name of one, the runs of a folder are listed."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Put the name of the default command before other arguments."""
        named = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named else [LIST, *args])


@terminal(verbs.runs)
def list_runs(as_json: JsonOption = False, **options: Any) -> None:
    listing = verbs.runs(**options)
    if as_json:
        print_json(listing.as_dict())
        return
    if not listing:
        print(f"no runs in {options['folder']}", file=sys.stderr)
        return
    from lmlab.run_store.run_cells import cell

    print_columns(
        listing.columns, ([cell(listing, r, c) for c in listing.columns] for r in listing)
    )
    print(f"{len(listing):,} runs in {listing.folder}", file=sys.stderr)


def print_columns(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table in aligned columns; quick for many rows, and as wide as it needs to be."""
    from lmlab.run_store.run_listing import NUMBERS

    table = [list(header), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(text_width, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = []
        for name, text, width in zip(header, row, widths, strict=True):
            blank = " " * (width - text_width(text))
            cells.append(blank + text if name in NUMBERS else text + blank)
        lines.append(GAP.join(cells).rstrip())
    print("\n".join(lines))


def text_width(text: str) -> int:
    """The columns of a screen that a text takes; a Chinese character takes two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


@terminal(verbs.runs_show)
def show(run: str, as_json: JsonOption = False) -> None:
    details = verbs.runs_show(run)
    if as_json:
        print_json(details.as_dict())
        return
    from lmlab.run_store.run_cells import shown_lines

    for name, value in shown_lines(details):
        print(f"{name:16} {value}")


@terminal(verbs.runs_diff)
def diff(runs: list[str], as_json: JsonOption = False) -> None:
    result = verbs.runs_diff(runs)
    if as_json:
        print_json(result.as_dict())
        return
    from lmlab.run_store.run_cells import value_text

    section = ""
    rows = []
    for row in result.rows:
        label = row.section if row.section != section else ""
        section = row.section
        rows.append([label, row.key, *("" if v is None else value_text(v) for v in row.values)])
    if rows:
        print_columns(["", "", *result.runs], rows)
    else:
        print("the runs do not differ")


@terminal(verbs.runs_tag)
def tag(**options: Any) -> None:
    print(" ".join(verbs.runs_tag(**options)))


@terminal(verbs.runs_rm)
def rm(
    runs: list[str],
    folder: str,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before deleting.")] = False,
) -> None:
    from pathlib import Path

    from lmlab.run_store.remove_runs import removable_runs, remove_runs

    chosen = removable_runs(runs, Path(folder))
    if not yes:
        if not sys.stdin.isatty():
            raise UserError(
                "deleting runs needs a confirmation; give --yes where nobody can answer."
            )
        from lmlab.run_store.run_cells import bytes_text

        for run in chosen:
            print(f"{run.path}  {bytes_text(run.disk)}", file=sys.stderr)
        noun = "run" if len(chosen) == 1 else "runs"
        if not typer.confirm(f"Delete {len(chosen)} {noun} for good?", err=True):
            raise UserError("nothing was deleted.")
    remove_runs(chosen)
    for run in chosen:
        print(f"deleted {run.path}", file=sys.stderr)
