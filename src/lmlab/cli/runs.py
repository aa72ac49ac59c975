"""`lmlab runs [FOLDER]`: list runs; `lmlab runs show|diff|tag|rm`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.options import JsonOption
from lmlab.cli.output import print, print_json, printable
from lmlab.cli.terminal import terminal
from lmlab.cli.verb_groups import Verbs
from lmlab.core.errors import UserError
from lmlab.verbs import runs as verbs

if TYPE_CHECKING:
    from lmlab.run_store.run_details import RunDetails
    from lmlab.run_store.run_listing import RunListing
    from lmlab.run_store.run_record import RunRecord

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


def cell(listing: RunListing, record: RunRecord, column: str) -> str:
    """The text of a run in a column."""
    value = listing.value(record, column)
    if value is None:
        return ""
    if column in FORMATS:
        return str(FORMATS[column](value))
    if column == "status":
        return status_text(record)
    return value_text(value)


def status_text(record: RunRecord) -> str:
    """A status with its progress: `running 42 %, 3 min left`."""
    if record.status == "finished" or record.progress is None:
        return record.status
    left = "" if record.seconds_left is None else f", {duration_text(record.seconds_left)} left"
    return f"{record.status} {record.progress:.0%}{left}"


def value_text(value: Any) -> str:
    """A value on one line: lists with commas, numbers as short as they can be."""
    if isinstance(value, dict):
        return " ".join(f"{name}={value_text(inner)}" for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(map(value_text, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def duration_text(seconds: float) -> str:
    """A time in the largest unit of which there are two or more: 95 s, 3 min, 30 h, 4 d."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def bytes_text(count: float) -> str:
    """A number of bytes: 512 B, 1.2 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


FORMATS: dict[str, Any] = {
    "best": lambda value: f"{value:.4f}",
    "age": duration_text,
    "seconds": duration_text,
    "seconds_left": duration_text,
    "disk": bytes_text,
    "progress": lambda value: f"{value:.0%}",
}


@terminal(verbs.runs_show)
def show(run: str, as_json: JsonOption = False) -> None:
    details = verbs.runs_show(run)
    if as_json:
        print_json(details.as_dict())
        return
    for name, value in shown_lines(details):
        print(f"{name:16} {value}")


def shown_lines(details: RunDetails) -> list[tuple[str, str]]:
    """What `runs show` prints: a name and a value for each line."""
    record = details.record
    best = "" if record.best is None else f"{record.best:.4f} ({record.best_kind})"
    rows = [
        ("run", str(record.path)),
        ("system", f"{record.system} {record.size}".strip()),
        ("status", status_text(record) + (f": {record.reason}" if record.reason else "")),
        ("best", best),
        ("steps", f"{record.step:,} in {duration_text(record.seconds)}" if record.step else ""),
        ("data", record.data),
        ("tokenizer", details.tokenizer),
        ("task", record.task or ""),
        ("imported from", record.imported or ""),
        *((_ancestor_label(a.role), _ancestor_text(a)) for a in details.ancestors),
        ("tags", ", ".join(record.tags)),
        ("disk", bytes_text(record.disk)),
        ("lmlab", details.lmlab),
        ("settings", value_text({"seed": record.seed, **record.settings})),
        ("environment", value_text(details.environment)),
    ]
    return [(name, value) for name, value in rows if value]


def _ancestor_label(role: str) -> str:
    return role.replace("_", " ")


def _ancestor_text(ancestor: Any) -> str:
    origin = [f"imported from {ancestor.imported}"] if ancestor.imported else []
    origin += [f"trained on {ancestor.data}"] if ancestor.data else []
    origin += [f"fine-tuned to {ancestor.finetuned}"] if ancestor.finetuned else []
    indent = "  " * (ancestor.depth - 1)
    return f"{indent}{ancestor.path}: {ancestor.system} {ancestor.size}, {', '.join(origin)}"


@terminal(verbs.runs_diff)
def diff(runs: list[str], as_json: JsonOption = False) -> None:
    result = verbs.runs_diff(runs)
    if as_json:
        print_json(result.as_dict())
        return
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
        for run in chosen:
            print(f"{run.path}  {bytes_text(run.disk)}", file=sys.stderr)
        noun = "run" if len(chosen) == 1 else "runs"
        if not typer.confirm(f"Delete {len(chosen)} {noun} for good?", err=True):
            raise UserError("nothing was deleted.")
    remove_runs(chosen)
    for run in chosen:
        print(f"deleted {run.path}", file=sys.stderr)
