"""The notes' tables (003), row by row, each a training recorded as JSON when it is done.

    python benchmarks/notes/run.py --data DATA [--tables cells,sphere] [--only TEXT] [--jobs 2]
    python benchmarks/notes/run.py --table [--write docs/notes.md]

Records stand in benchmarks/results/notes/; a row that is there is not run again, and one that was
stopped resumes. `--table` writes the tables as Markdown with the notes' figures beside ours: rows
that have not been run are marked so.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tables import TABLES, Row, Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from cells import RESULTS, arguments, place_of, run_cells


def found(row: Row, table: Table, seed: int) -> dict[str, Any] | None:
    """The record of a row, where it has been run."""
    name = f"notes/{row.cell(table.protocol, seed).name}"
    path = RESULTS / f"{row.elsewhere or name}.json"
    if not path.exists():
        return None
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def markdown(table: Table, seed: int) -> str:
    """The notes' figures and ours, the best of ours first, then what was not run."""
    lines = [
        f"### {table.title}",
        "",
        "| row | system | the notes, E20 | E30 | ours, E20 | best | training loss | parameters |",
        "|---|---|---|---|---|---|---|---|",
    ]
    records = [(row, found(row, table, seed)) for row in table.rows]
    done = [(row, record) for row, record in records if record is not None]
    done.sort(key=lambda pair: float(pair[1]["row"]["nats_per_token"]))
    for row, record in done:
        ours = record["row"]
        off = f" without {', '.join(map(str, row.off))}" if row.off else ""
        best = min(record["held_out"], key=lambda line: float(line["loss"]))
        lines.append(
            f"| {row.label} | `{row.system}`{off} | {figure(row.notes_20)} "
            f"| {figure(row.notes_30)} | {figure(ours['nats_per_token'])} "
            f"| {figure(best['loss'])} at {best['epoch']} "
            f"| {figure(record['last_training_loss'])} | {ours['parameters']:,} |"
        )
    for row, record in records:
        if record is None:
            notes = f"{figure(row.notes_20)} | {figure(row.notes_30)}"
            lines.append(f"| {row.label} | `{row.system}` | {notes} | not run | | | |")
    return "\n".join(lines)


def write_into(page: Path, seed: int) -> None:
    """Put each table between its two marks in a page, in place of what stands there."""
    text = page.read_text(encoding="utf-8")
    for table in TABLES:
        begin, end = f"<!-- table {table.name} -->", f"<!-- end of {table.name} -->"
        before, found, rest = text.partition(begin)
        if found:
            text = f"{before}{begin}\n{markdown(table, seed)}\n{end}{rest.partition(end)[2]}"
    page.write_text(text, encoding="utf-8")


def main() -> None:
    parser = arguments(__doc__.splitlines()[0], "runs/notes")
    parser.add_argument("--tables", default="", help="names of tables with commas; all of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help="a page to put the tables into")
    options = parser.parse_args()
    names = options.tables.split(",") if options.tables else [table.name for table in TABLES]
    wanted = [table for table in TABLES if table.name in names]
    if options.write:
        write_into(options.write, options.seed)
    if options.table:
        print("\n\n".join(markdown(table, options.seed) for table in wanted))
    if options.write or options.table:
        return
    place = place_of(options, parser, "notes")
    cells = [cell for table in wanted for cell in table.cells(options.seed)]
    run_cells([cell for cell in cells if options.only in cell.name], place, options.jobs)


if __name__ == "__main__":
    main()
