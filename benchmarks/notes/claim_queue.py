"""The claims' benchmarks as experiments of the queue: command, cost, and when they are finished.

    python benchmarks/notes/claim_queue.py                    # prints the state of each
    python benchmarks/notes/claim_queue.py --write docs/notes.md

Each can be killed and begun again: its file is saved after every record. `experiments()` is for
`run_queue.py`, the queue of all long experiments.
"""

from __future__ import annotations

import argparse
import importlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
SEEDS = 3


@dataclass(frozen=True, kw_only=True)
class ClaimRun:
    """One command; finished when its file has a record for each configuration and seed."""

    name: str
    command: tuple[str, ...]
    """A script of the repository and its arguments; {data} is the folder of the corpora."""
    minutes: float
    """Estimated minutes on one core, from beginning to end."""
    record: str
    """File below the records."""
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


DATA = ("--data", "{data}")
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
    lines = ["| experiment | records | minutes left | command |", "|---|---|---|---|"]
    for run in RUNS:
        done = run.done(records)
        left = run.minutes * (1 - min(done / run.total, 1.0))
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


def experiments() -> list[Any]:
    """The same as experiments of `run_queue.py`, which knows when they are finished by `done`."""
    experiment = importlib.import_module("experiment")

    @dataclass(frozen=True, kw_only=True)
    class ClaimExperiment(experiment.Experiment):  # type: ignore[name-defined,misc]
        """Finished when all records are there; killed at any moment, it loses one of them."""

        claim: ClaimRun

        def finished(self, folders: Any) -> bool:
            return self.claim.done(folders.records) >= self.claim.total

    return [
        ClaimExperiment(
            name=run.name,
            group="claims",
            command=run.command,
            minutes=run.minutes,
            record=run.record,
            claim=run,
        )
        for run in RUNS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=Path, default=RESULTS)
    parser.add_argument("--write", type=Path, help="update the table in this page")
    options = parser.parse_args()
    if options.write:
        write_into(options.write, options.records)
        return
    left = sum(r.minutes * (1 - min(r.done(options.records) / r.total, 1.0)) for r in RUNS)
    print(table(options.records))
    print(f"{left / 60:.1f} core-hours left")


if __name__ == "__main__":
    main()
