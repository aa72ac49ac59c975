"""The notes' tables (003): one training of 30 epochs per row and seed, recorded as JSON.

    python benchmarks/notes/run.py --data DATA [--tables cells,sphere] [--only TEXT] [--jobs 2]
    python benchmarks/notes/run.py --table [--write docs/notes.md]

Records are in benchmarks/results/notes/. Rows with a record are skipped, interrupted ones resume;
benchmarks/run_queue.py runs them with all other long experiments. `--table` prints the tables as
Markdown with the notes' figures next to ours; rows without a record are marked "not run".
"""

from __future__ import annotations

import sys
from pathlib import Path

from row_tables import markdown, replace_between
from rows import RECORDS
from tables import TABLES

sys.path.insert(0, str(Path(__file__).parents[1]))

from cells import RESULTS, RunEnvironment, arguments, run_cells
from experiment import Experiment


def experiments() -> list[Experiment]:
    """All rows and seeds, for the queue."""
    return [experiment for table in TABLES for experiment in table.experiments()]


def write_into(page: Path) -> None:
    """Replace the text between the two markers of each table in a page."""
    for table in TABLES:
        begin, end = f"<!-- table {table.name} -->", f"<!-- end of {table.name} -->"
        replace_between(page, begin, end, markdown(table))


def main() -> None:
    parser = arguments(__doc__.splitlines()[0], "runs/notes")
    parser.add_argument("--tables", default="", help="comma-separated names [default: all]")
    parser.add_argument("--records", type=Path, default=RESULTS, help="folder of the records")
    parser.add_argument("--write", type=Path, help="update the tables in this page")
    options = parser.parse_args()
    names = options.tables.split(",") if options.tables else [table.name for table in TABLES]
    selected = [table for table in TABLES if table.name in names]
    if options.write:
        write_into(options.write)
    if options.table:
        print("\n\n".join(markdown(table) for table in selected))
    if options.write or options.table:
        return
    if options.data is None:
        parser.error("the data folder is missing; give --data or set LMLAB_DATA")
    environment = RunEnvironment(
        data=Path(options.data),
        runs=options.runs,
        records=options.records / RECORDS,
        threads=options.threads,
    )
    cells = [cell for table in selected for cell in table.cells() if options.only in cell.name]
    if not run_cells(cells, environment, options.jobs):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
