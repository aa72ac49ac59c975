"""Speed of the run store: seconds of `lmlab runs` over many generated runs, with and without index.

    python benchmarks/run_store.py [--runs 10000] [--out benchmarks/results/run_store.json]

One tiny LSTM is trained, and its folder copied with other seeds, learning rates and metrics of 100
training lines and 10 validations; the weights are left out, as listing reads only that they exist.
Each figure is that of a whole command, the start of Python included, its output in a pipe: seconds
on the clock, and of the processor (`cpu`), which other programs of the machine do not change. Files
are in the page cache. The index is in a temporary folder of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import lmlab
from lmlab.run_store.run_index import SETTLED_SECONDS

ROUNDS = 5
LINES, VALIDATIONS = 100, 10
CHANGED = 10
"""Runs that are tagged before one of the listings."""


def template(folder: Path) -> Path:
    """A finished run to copy."""
    lmlab.train("lstm", data="grammar", out=folder, size="tiny", steps=50, quiet=True)
    (folder / "model.safetensors").write_bytes(b"")
    for tensors in folder.glob("trainer/*/*.safetensors"):
        tensors.write_bytes(b"")
    return folder


def metrics_text(draw: random.Random) -> str:
    """A metrics.jsonl of 5,000 steps."""
    lines = []
    for number in range(1, LINES + 1):
        step, loss = 50 * number, 4 - 2 * number / LINES + draw.random() / 10
        shared = {"step": step, "epoch": number // 10}
        lines.append(
            {
                **shared,
                "event": "train",
                "loss": loss,
                "count": 25_000,
                "learning_rate": 0.002,
                "gradient_norm": draw.random(),
                "tokens_per_second": 80_000.0,
                "epochs": number / 10,
                "update_ratio": 0.001,
                "seconds": 6.0 * number,
            }
        )
        if number % (LINES // VALIDATIONS) == 0:
            held_out = {"event": "validation", "loss": loss, "count": 3000}
            lines.append({**shared, **held_out, "seconds": 6.0 * number})
    return "".join(json.dumps(line) + "\n" for line in lines)


def generate(folder: Path, source: Path, count: int) -> None:
    """Write `count` runs, 100 to a folder."""
    draw = random.Random(0)
    config = json.loads((source / "config.json").read_text())
    for number in range(count):
        run = folder / f"sweep-{number // 100:03}" / f"run-{number:05}"
        shutil.copytree(source, run)
        config["seed"] = config["training"]["seed"] = number % 5
        config["training"]["learning_rate"] = round(10 ** draw.uniform(-4, -2), 6)
        config["system_config"]["width"] = draw.choice((16, 32, 64))
        (run / "config.json").write_text(json.dumps(config, indent=2))
        (run / "metrics.jsonl").write_text(metrics_text(draw))


def command(*arguments: str, cache: Path) -> tuple[float, float]:
    """Seconds of one command, on the clock and of the processor."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "lmlab", *arguments],
        check=True,
        capture_output=True,
        env=os.environ | {"LMLAB_CACHE": str(cache)},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start, cpu


def median(*arguments: str, cache: Path, rounds: int = ROUNDS) -> dict[str, float]:
    """Median times of a command."""
    times = [command(*arguments, cache=cache) for _ in range(rounds)]
    clock, cpu = (statistics.median(values) for values in zip(*times, strict=True))
    return {"seconds": round(clock, 3), "cpu": round(cpu, 3)}


def measure(scratch: Path, count: int) -> dict[str, Any]:
    """The times of listings of `count` runs."""
    runs, cache = scratch / "runs", scratch / "cache"
    generate(runs, template(scratch / "template"), count)
    time.sleep(SETTLED_SECONDS + 1)  # folders that have just changed are not stored
    listing = ("runs", str(runs))
    selection = ("--where", "width=32 and best<2.05", "--sort", "best")
    record: dict[str, Any] = {
        "runs": count,
        "python start": median("--version", cache=cache),
        "rebuild": median(*listing, cache=cache, rounds=1),
        "warm": median(*listing, cache=cache),
        "warm, --where and --sort": median(*listing, *selection, cache=cache),
    }
    for number in range(CHANGED):
        lmlab.runs_tag(runs / "sweep-000" / f"run-{number:05}", ["chosen"])
    record[f"{CHANGED} runs changed"] = median(*listing, cache=cache, rounds=1)
    return record | {"index megabytes": round((cache / "runs.sqlite").stat().st_size / 1e6, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        text = json.dumps(measure(Path(scratch), options.runs), indent=2)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
