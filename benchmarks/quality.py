"""Quality on real text: the recurrent systems and the n-gram under the data protocols.

    python benchmarks/quality.py --data DATA [--only multi30k-l20] [--jobs 2] [--threads 1]

Each cell of the table is one training, run by the `lmlab` command and recorded as a JSON file in
benchmarks/results/quality/ as soon as it is done; a cell that is there is not run again, and one
that was stopped resumes. Figures are nats a token on the test split after the last epoch
(of the best epoch by validation, where the protocol has such a split). `--table` prints them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "quality"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training: a protocol, a system, a way of training it, a seed."""

    protocol: str
    system: str
    variant: str
    seed: int
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.protocol}.{self.system}.{self.variant}.seed{self.seed}"


NOTES = ("--recipe", "notes", "--epochs", "20", "--set", "dropout=0")
TUNED = ("--recipe", "multi30k")
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
SWEEP = ("--recipe", "notes", "--epochs", "2", "--set", "dropout=0")
"""The notes give no learning rate: each system gets the one that is best after two epochs."""


def swept_rate(system: str) -> float | None:
    """The best rate of the sweep, once all of it has been run."""
    held_out = {}
    for rate in RATES:
        record = RESULTS / f"multi30k-l20.{system}.notes-rate-{rate}.seed0.json"
        if not record.exists():
            return None
        held_out[json.loads(record.read_text(encoding="utf-8"))["row"]["nats_per_token"]] = rate
    return held_out[min(held_out)]


def sweep() -> list[Cell]:
    """Two epochs by the notes' optimiser at each learning rate."""
    return [
        Cell(
            protocol="multi30k-l20",
            system=system,
            variant=f"notes-rate-{rate}",
            seed=0,
            arguments=(*SWEEP, "--set", f"learning_rate={rate}"),
        )
        for system in ("lstm", "lstm-sphere")
        for rate in RATES
    ]


def cells() -> list[Cell]:
    """In the order in which they are run: first one seed of everything, then the other seeds."""
    table = [
        Cell(protocol="ptb-contiguous", system="ngram", variant="order-5", seed=0, arguments=()),
        Cell(protocol="ptb-sentence", system="ngram", variant="order-5", seed=0, arguments=()),
    ]
    for seed in (0, 1, 2):
        for system in ("lstm", "lstm-sphere"):
            tuned = Cell(
                protocol="multi30k-l20", system=system, variant="tuned", seed=seed, arguments=TUNED
            )
            table.append(tuned)
            if (rate := swept_rate(system)) is not None:
                notes = Cell(
                    protocol="multi30k-l20",
                    system=system,
                    variant="notes",
                    seed=seed,
                    arguments=(*NOTES, "--set", f"learning_rate={rate}"),
                )
                table.append(notes)
        if seed == 0:
            window = ("--recipe", "multi30k", "--set", "size=5")
            table.append(
                Cell(
                    protocol="multi30k-l20",
                    system="window",
                    variant="tuned",
                    seed=0,
                    arguments=window,
                )
            )
    ptb = ("--recipe", "ptb")
    table.append(
        Cell(protocol="ptb-contiguous", system="lstm", variant="200", seed=0, arguments=ptb)
    )
    return table


def lmlab(*arguments: str, threads: int) -> subprocess.CompletedProcess[str]:
    """The command line of this environment, with a fixed number of threads."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "lmlab", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def run_cell(cell: Cell, *, data: Path, runs: Path, threads: int) -> None:
    """Train, compare on the test split, and record what came of it."""
    record = RESULTS / f"{cell.name}.json"
    if record.exists():
        return
    run, corpus = runs / cell.name, f"{cell.protocol}:{data}"
    train = ("train", cell.system, "--data", corpus, "--out", str(run), *cell.arguments)
    resume = ("--resume",) if (run / "config.json").exists() else ()
    trained = lmlab(*train, "--seed", str(cell.seed), *resume, threads=threads)
    compared = lmlab("compare", str(run), "--data", corpus, "--json", threads=threads)
    if trained.returncode or compared.returncode:
        print(f"{cell.name}: failed: {trained.stderr[-500:]} {compared.stderr[-500:]}")
        return
    row = json.loads(compared.stdout)["rows"][0]
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    command = [*train, "--seed", str(cell.seed)]
    result = {
        **asdict(cell),
        "command": " ".join(["lmlab", *command])
        .replace(str(data), "DATA")
        .replace(str(run), "RUN"),
        "threads": threads,
        "row": row,
        "held_out": [m for m in metrics if m["event"] != "train"],
        "last_training_loss": next(
            (m["loss"] for m in reversed(metrics) if m["event"] == "train"), None
        ),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{cell.name}: {row['nats_per_token']:.4f} nats a token", flush=True)


def print_table() -> None:
    """Markdown: each protocol, system and variant with its seeds' mean and spread."""
    groups: dict[tuple[str, str, str], list[dict]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        key = (result["protocol"], result["system"], result["variant"])
        groups.setdefault(key, []).append(result)
    print("| protocol | system | variant | seeds | nats a token | perplexity | minutes |")
    print("|---|---|---|---|---|---|---|")
    for (protocol, system, variant), results in groups.items():
        nats = [result["row"]["nats_per_token"] for result in results]
        spread = f" ± {statistics.stdev(nats):.3f}" if len(nats) > 1 else ""
        seconds = [result["row"].get("train_seconds") or 0.0 for result in results]
        perplexity = statistics.mean(result["row"]["perplexity"] for result in results)
        print(
            f"| {protocol} | {system} | {variant} | {len(nats)} "
            f"| {statistics.mean(nats):.3f}{spread} | {perplexity:.1f} "
            f"| {statistics.mean(seconds) / 60:.1f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("LMLAB_DATA"))
    parser.add_argument("--runs", type=Path, default=Path("runs/quality"))
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="threads of each job")
    parser.add_argument("--table", action="store_true", help="print what has been measured")
    options = parser.parse_args()
    if options.table:
        print_table()
        return
    if options.data is None:
        parser.error("where is the data? give --data or set LMLAB_DATA")
    for stage in (sweep, cells):  # the rates that the sweep finds are settings of the cells
        wanted = [cell for cell in stage() if options.only in cell.name]
        with ThreadPoolExecutor(options.jobs) as pool:
            for cell in wanted:
                pool.submit(
                    run_cell,
                    cell,
                    data=Path(options.data),
                    runs=options.runs,
                    threads=options.threads,
                )


if __name__ == "__main__":
    main()
