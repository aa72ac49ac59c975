"""The notes' tables (003): one training run per row, recorded as JSON when it is finished.

    python benchmarks/notes/run.py --data DATA [--tables cells,sphere] [--only TEXT] [--jobs 2]
    python benchmarks/notes/run.py --table [--write docs/notes.md]

Records are in benchmarks/results/notes/. Rows with a record are skipped, interrupted ones resume.
`--table` prints the tables as Markdown with the notes' figures next to ours; rows without a record
are marked "not run".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tables import TABLES, Row, Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from cells import RESULTS, arguments, run_cells, run_environment


def load_record(row: Row, table: Table, seed: int) -> dict[str, Any] | None:
    """The record of a row; None if it has not been run."""
    name = f"notes/{row.cell(table.protocol, seed).name}"
    path = RESULTS / f"{row.elsewhere or name}.json"
    if not path.exists():
        return None
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def figure(value: float | None) -> str:
    """A number with three decimals; empty for None."""
    return "" if value is None else f"{value:.3f}"


def markdown(table: Table, seed: int) -> str:
    """The notes' figures and ours, sorted by our loss; then the rows that were not run."""
    lines = [
        f"### {table.title}",
        "",
        "| row | system | the notes, E20 | E30 | ours, E20 | best | training loss | parameters |",
        "|---|---|---|---|---|---|---|---|",
    ]
    records = [(row, load_record(row, table, seed)) for row in table.rows]
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
    """Replace the text between the two markers of each table in a page."""
    text = page.read_text(encoding="utf-8")
    for table in TABLES:
        begin, end = f"<!-- table {table.name} -->", f"<!-- end of {table.name} -->"
        before, marker, rest = text.partition(begin)
        if marker:
            text = f"{before}{begin}\n{markdown(table, seed)}\n{end}{rest.partition(end)[2]}"
    page.write_text(text, encoding="utf-8")


def main() -> None:
    parser = arguments(__doc__.splitlines()[0], "runs/notes")
    parser.add_argument("--tables", default="", help="comma-separated names [default: all]")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the runs")
    parser.add_argument("--write", type=Path, help="update the tables in this page")
    options = parser.parse_args()
    names = options.tables.split(",") if options.tables else [table.name for table in TABLES]
    selected = [table for table in TABLES if table.name in names]
    if options.write:
        write_into(options.write, options.seed)
    if options.table:
        print("\n\n".join(markdown(table, options.seed) for table in selected))
    if options.write or options.table:
        return
    environment = run_environment(options, parser, "notes")
    cells = [cell for table in selected for cell in table.cells(options.seed)]
    run_cells([cell for cell in cells if options.only in cell.name], environment, options.jobs)


if __name__ == "__main__":
    main()
