"""The claims' benchmarks as experiments of the queue: command, cost, and when they are finished.

    python benchmarks/notes/claim_queue.py                    # prints the state of each
    python benchmarks/notes/claim_queue.py --write docs/notes.md

Each can be killed and begun again: its file is saved after every record.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from experiment import RESULTS, Experiment, Folders

SEEDS = 3
DATA = ("--data", "{data}")


@dataclass(frozen=True, kw_only=True)
class ClaimRun(Experiment):
    """Finished when its file has a record for each configuration and seed."""

    group: str = "claims"
    configurations: int
    where: dict[str, Any] = field(default_factory=dict)
    """Fields of the records that count, where a file has those of several commands."""

    @property
    def total(self) -> int:
        return SEEDS * self.configurations

    def done(self, records: Path = RESULTS) -> int:
        """How many of its records there are."""
        path = records / self.record
        if not path.exists():
            return 0
        stored = json.loads(path.read_text(encoding="utf-8"))["records"]
        return sum(self.where.items() <= record.items() for record in stored)

    def finished(self, folders: Folders) -> bool:
        return self.done(folders.records) >= self.total

    def minutes_left(self, folders: Folders) -> float:
        return self.minutes * (1 - min(self.done(folders.records) / self.total, 1.0))


def claim(name: str, configurations: int, minutes: float, *arguments: str) -> ClaimRun:
    """A script of this folder whose whole file is one command."""
    script = f"benchmarks/notes/{name.replace('-', '_')}.py"
    return ClaimRun(
        name=f"claims.{name}",
        command=(script, *arguments),
        minutes=minutes,
        record=f"claims/{name}.json",
        configurations=configurations,
    )


def memory(gaps: str, minutes: float) -> ClaimRun:
    """The memory claim with gaps mixed (the text "mixed"), or with one gap."""
    return ClaimRun(
        name=f"claims.memory.{gaps}",
        command=("benchmarks/notes/memory.py", "--only", f"gaps={gaps} "),
        minutes=minutes,
        record="claims/memory.json",
        configurations=6,
        where={"gaps": gaps},
    )


def cells(corpus: str, minutes: float) -> ClaimRun:
    """All cells on one corpus."""
    return ClaimRun(
        name=f"claims.cells.{corpus.replace(' ', '-')}",
        command=(
            "benchmarks/notes/cell_variants.py",
            "--data",
            "{data}",
            "--only",
            f"corpus={corpus} ",
        ),
        minutes=minutes,
        record="claims/cell-variants.json",
        configurations=17,
        where={"corpus": corpus},
    )


RUNS = (
    memory("mixed", 14),
    memory("5", 8),
    memory("20", 10),
    memory("96", 12),
    claim("gradient-lesson", 2, 4),
    claim("nce-four-sentences", 4, 2),
    claim("analogies", 2, 8),
    claim("few-shot-size", 4, 6),
    claim("t5-unseen-words", 1, 36, *DATA),
    claim("pooling-energies", 9, 20),
    claim("joint-dependencies", 5, 6),
    claim("single-mask-counts", 4, 4),
    claim("expectation-mixture", 16, 3),
    claim("energy-levels", 6, 15, *DATA),
    claim("query-key-lengths", 2, 8),
    claim("screening", 3, 6, *DATA),
    ClaimRun(
        name="claims.hops",
        command=("benchmarks/hops.py", "--depths", "1,2,3,4,5", "--seeds", "3", "--jobs", "1"),
        minutes=90,
        record="hops.json",
        configurations=10,
    ),
    claim("gpt-by-length", 12, 55, *DATA),
    claim("sampled-attention", 3, 4),
    cells("letters", 20),
    cells("proteins", 12),
    cells("long proteins", 20),
    cells("words", 300),
    claim("transfer", 8, 8, *DATA),
)


def table(records: Path) -> str:
    """The state of every command, as Markdown."""
    folders = Folders(runs=Path("runs"), records=records)
    lines = ["| experiment | records | minutes left | command |", "|---|---|---|---|"]
    for run in RUNS:
        done = run.done(records)
        left = run.minutes_left(folders)
        command = " ".join(f"'{part}'" if " " in part else part for part in run.command)
        state = f"{left:.0f}, queued" if done < run.total else "0"
        shown = command.replace("{data}", "DATA")
        lines.append(f"| {run.name} | {done} of {run.total} | {state} | `python {shown}` |")
    return "\n".join(lines)


def write_into(page: Path, records: Path = RESULTS) -> None:
    """Replace the text between the two markers in a page."""
    begin, end = "<!-- claims' queue -->", "<!-- end of claims' queue -->"
    before, marker, rest = page.read_text(encoding="utf-8").partition(begin)
    assert marker, f"{page} has no {begin}"
    after = rest.partition(end)[2]
    page.write_text(f"{before}{begin}\n{table(records)}\n{end}{after}", encoding="utf-8")


def experiments() -> list[ClaimRun]:
    """All of them, for `run_queue.py`."""
    return list(RUNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=Path, default=RESULTS)
    parser.add_argument("--write", type=Path, help="update the table in this page")
    options = parser.parse_args()
    if options.write:
        write_into(options.write, options.records)
        return
    print(table(options.records))


if __name__ == "__main__":
    main()
