"""Training runs of the benchmark tables: each cell is one `lmlab train`, recorded as JSON.

Cells that have a record are skipped and interrupted ones resume, so a table can be filled over
days; `run_cells` runs a few in parallel.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training run: protocol, system, training variant and seed."""

    protocol: str
    system: str
    variant: str
    seed: int
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.protocol}.{self.system}.{self.variant}.seed{self.seed}"


@dataclass(frozen=True, kw_only=True)
class RunEnvironment:
    """Paths of the data, runs and records, and the number of threads per run."""

    data: Path
    runs: Path
    records: Path
    threads: int

    def record(self, cell: Cell) -> Path:
        return self.records / f"{cell.name}.json"


def lmlab(*arguments: str, threads: int) -> subprocess.CompletedProcess[str]:
    """Run the `lmlab` command line with a fixed number of threads."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "lmlab", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def run_cell(cell: Cell, environment: RunEnvironment) -> None:
    """Train, evaluate on the test split, and record the result."""
    if environment.record(cell).exists():
        return
    run, corpus = environment.runs / cell.name, f"{cell.protocol}:{environment.data}"
    train = ["train", cell.system, "--data", corpus, "--out", str(run), *cell.arguments]
    train += ["--seed", str(cell.seed)]
    resume = ["--resume"] if (run / "config.json").exists() else []
    trained = lmlab(*train, *resume, threads=environment.threads)
    compared = lmlab("compare", str(run), "--data", corpus, "--json", threads=environment.threads)
    if trained.returncode or compared.returncode:
        print(f"{cell.name}: failed: {trained.stderr[-500:]} {compared.stderr[-500:]}", flush=True)
        return
    row = json.loads(compared.stdout)["rows"][0]
    write_record(cell, environment, run, " ".join(["lmlab", *train]), row)
    print(f"{cell.name}: {row['nats_per_token']:.4f} nats per token", flush=True)


def write_record(
    cell: Cell, environment: RunEnvironment, run: Path, command: str, row: dict[str, Any]
) -> None:
    """Write the record of a finished cell: command, table row and training curve."""
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    recorded_command = command.replace(str(environment.data), "DATA").replace(str(run), "RUN")
    record = {
        **asdict(cell),
        "command": recorded_command,
        "threads": environment.threads,
        "row": {name: value for name, value in row.items() if name != "runs"},
        "held_out": [m for m in metrics if m["event"] != "train"],
        "last_training_loss": next(
            (m["loss"] for m in reversed(metrics) if m["event"] == "train"), None
        ),
    }
    environment.records.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    temporary = environment.record(cell).with_suffix(".part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(environment.record(cell))


def run_cells(cells: list[Cell], environment: RunEnvironment, jobs: int) -> None:
    """Run all cells in order, `jobs` at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        for cell in cells:
            pool.submit(run_cell, cell, environment)


def read_records(folder: Path) -> list[dict[str, Any]]:
    """All records of a folder, sorted by file name."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def arguments(description: str, runs: str) -> argparse.ArgumentParser:
    """The argument parser shared by all tables of cells."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, default=os.environ.get("LMLAB_DATA"))
    parser.add_argument("--runs", type=Path, default=Path(runs))
    parser.add_argument("--only", default="", help="run only cells whose name contains this string")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="threads per job")
    parser.add_argument(
        "--table", action="store_true", help="print the recorded results instead of training"
    )
    return parser


def run_environment(
    options: argparse.Namespace, parser: argparse.ArgumentParser, folder: str
) -> RunEnvironment:
    """The run environment described by the command-line options."""
    if options.data is None:
        parser.error("the data folder is missing; give --data or set LMLAB_DATA")
    return RunEnvironment(
        data=Path(options.data),
        runs=options.runs,
        records=RESULTS / folder,
        threads=options.threads,
    )
