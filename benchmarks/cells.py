"""Training runs of the benchmark tables: each cell is one `lmlab train`, recorded as JSON.

Cells that have a record are skipped and interrupted ones resume, so a table can be filled over
days; `run_cells` runs a few in parallel. SIGTERM and Ctrl-C are passed on to the trainings, which
save a checkpoint first.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).resolve().parents[1]


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


class Processes:
    """The running `lmlab` commands; once stopped, none is started any more."""

    def __init__(self) -> None:
        self.stopped = False
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.RLock()  # a signal may come while this thread holds it

    def run(self, command: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
        """Exit code, output and error messages."""
        with self._lock:
            if self.stopped:
                return -signal.SIGTERM, "", "stopped"
            # Inherited files stay open: the queue's lock ends with the last of its processes.
            process = subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                close_fds=False,
                start_new_session=True,  # Ctrl-C reaches them by `stop` alone
            )
            self._running.add(process)
        output, errors = process.communicate()
        with self._lock:
            self._running.discard(process)
        return process.returncode, output, errors

    def stop(self, *_: object) -> None:
        """Ask all of them to stop."""
        with self._lock:
            self.stopped = True
            for process in self._running:
                process.terminate()


PROCESSES = Processes()


def lmlab(*arguments: str, threads: int) -> tuple[int, str, str]:
    """Run the `lmlab` command line with a fixed number of threads."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    return PROCESSES.run([sys.executable, "-m", "lmlab", *arguments], environment)


def run_cell(cell: Cell, environment: RunEnvironment) -> bool:
    """Train, evaluate on the test split, and record the result; whether there is a record."""
    if environment.record(cell).exists():
        return True
    run, corpus = environment.runs / cell.name, f"{cell.protocol}:{environment.data}"
    train = ["train", cell.system, "--data", corpus, "--out", str(run)]
    train += [part.replace("RUNS", str(environment.runs)) for part in cell.arguments]
    train += ["--seed", str(cell.seed)]
    resume = ["--resume"] if (run / "config.json").exists() else []
    run.mkdir(parents=True, exist_ok=True)
    note_commit(run)
    code, _, errors = lmlab(*train, *resume, threads=environment.threads)
    if not code:
        code, output, errors = lmlab(
            "compare", str(run), "--data", corpus, "--json", threads=environment.threads
        )
    if PROCESSES.stopped:
        print(f"{cell.name}: stopped", flush=True)
        return False
    if code:
        print(f"{cell.name}: failed: {' '.join(errors.split())[-500:]}", flush=True)
        return False
    row = json.loads(output)["rows"][0]
    row["nats_per_token_by_sentence"] = sentence_mean(run, corpus)
    write_record(cell, environment, run, " ".join(["lmlab", *train]), row)
    print(f"{cell.name}: {row['nats_per_token']:.4f} nats per token", flush=True)
    return True


def sentence_mean(run: Path, spec: str) -> float | None:
    """Mean over test sentences of their mean nats per token; None for contiguous text."""
    import torch

    from lmlab.data.corpus import open_corpus
    from lmlab.scoring.split_evaluation import evaluate_split
    from lmlab.training.run_folder import load_run

    corpus = open_corpus(spec)
    if corpus.layout.cut is None:
        return None
    torch.set_num_threads(1)
    scores = evaluate_split(load_run(run), corpus, "test", None, measures={})
    scored = scores.tokens > 0
    return float((-scores.totals[scored] / scores.tokens[scored]).mean())


def note_commit(run: Path) -> None:
    """Add the commit of the code to RUN/commits.txt, if it is not the last one noted."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--", "src", "benchmarks/*.py", "benchmarks/notes/*.py")
    commit = (git("rev-parse", "HEAD") or "unknown") + (" with changes" if changed else "")
    path = run / "commits.txt"
    noted = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    if noted[-1:] != [commit]:
        path.write_text("\n".join([*noted, commit]) + "\n", encoding="utf-8")


def software(run: Path) -> dict[str, Any]:
    """What of the run's environment bears on its figures, without the machine's name."""
    environment = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    return {name: environment[name] for name in ("python", "instructions", "packages")}


def write_record(
    cell: Cell, environment: RunEnvironment, run: Path, command: str, row: dict[str, Any]
) -> None:
    """Write the record of a finished cell: command, code, table row and training curve."""
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for path, name in ((run, "RUN"), (environment.runs, "RUNS"), (environment.data, "DATA")):
        command = command.replace(str(path), name)
    record = {
        **asdict(cell),
        "command": command,
        "commits": (run / "commits.txt").read_text(encoding="utf-8").split("\n")[:-1],
        "environment": software(run),
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


def run_cells(cells: list[Cell], environment: RunEnvironment, jobs: int) -> bool:
    """Run all cells in order, `jobs` at a time; whether all of them have a record."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, PROCESSES.stop)
    with ThreadPoolExecutor(jobs) as pool:
        return all(list(pool.map(lambda cell: run_cell(cell, environment), cells)))


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
