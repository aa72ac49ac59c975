"""Large files: throughput by 1 and 2 processes, memory of each, planning and kill -9 of 1 GB.

    python benchmarks/large_files.py [--scale 1.0] [--minutes 10] [--work FOLDER] [--table]

Sizes are 50 MB for the n-gram model and 5 MB for the others, times `--scale`; the last case plans
1 GB, times `--scale`, scores it for half of `--minutes`, is killed by SIGKILL, and goes on for the
other half. Text, models and records are kept, so that a stopped benchmark continues. Seconds
include the start of the processes and the loading of the models.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from record_file import RESULTS, Record, add_missing, read_records

import lmlab
from lmlab.experiments.large_files.file_options import CHUNK_BYTES
from lmlab.experiments.large_files.text_chunks import plan_chunks

MEGABYTE = 10**6
BLOCK_SENTENCES = 20_000
WORDS = ("the", "a", "dog", "cat", "man", "woman", "mary", "john", "sees", "likes", "sleeps")
CASES = {
    # case: system, verb, megabytes
    "ngram": ("ngram", "score", 50),
    "lstm": ("lstm", "score", 5),
    "encode": ("lstm", "encode", 5),
    "fill": ("bert", "fill", 5),
    "translate": ("transformer", "translate", 5),
}


def write_text(path: Path, size: int, *, masked: bool = False) -> Path:
    """A file of about `size` bytes of sentences of 3 to 12 words, one masked if `masked`."""
    if path.exists():
        return path
    rng = random.Random(0)
    sentences = []
    for _ in range(BLOCK_SENTENCES):
        words = rng.choices(WORDS, k=rng.randint(3, 12))
        if masked:
            words[rng.randrange(len(words))] = "<mask>"
        sentences.append(" ".join(words) + "\n")
    block = "".join(sentences).encode()
    with path.open("wb") as file:
        while file.tell() + len(block) < size:
            file.write(block)
        file.write(block[: block.rfind(b"\n", 0, max(1, size - file.tell())) + 1])
    return path


def trained(system: str, work: Path) -> Path:
    """A run of the system's size `small`, trained for a few steps: speed is what is measured."""
    run = work / "runs" / system
    if run.exists():
        return run
    data = work / "pairs.tsv"
    data.write_text("".join(f"{w} {v}\t{v} {w}\n" for w in WORDS for v in WORDS))
    sentences = write_text(work / "train.txt", MEGABYTE)
    conditional = any(card.name == system and card.conditional for card in lmlab.systems())
    corpus = data if conditional else sentences
    lmlab.train(system, data=corpus, out=run, size="small", steps=20, quiet=True)
    return run


def command(case: str, work: Path, text: Path, out: Path, jobs: int) -> list[str]:
    """The command of a case; files of less than 16 chunks are divided into smaller ones."""
    system, verb, _ = CASES[case]
    run = trained(system, work)
    options = ["--n-best", "1", "--beam", "1"] if verb == "translate" else []
    program = [sys.executable, "-m", "lmlab", verb, str(run), str(text)]
    chunk = min(CHUNK_BYTES, text.stat().st_size // 16)
    options += ["--chunk-bytes", str(chunk)]
    return [*program, "--out", str(out), "--jobs", str(jobs), "--json", *options]


def throughput(case: str, megabytes: float, jobs: int, work: Path) -> Record:
    """Seconds, kilobytes per second and the peak memory of a process; the hash of the output."""
    name = f"{'masked' if case == 'fill' else 'text'}-{megabytes:g}.txt"
    text = write_text(work / name, round(megabytes * MEGABYTE), masked=case == "fill")
    out = work / f"{case}-{megabytes:g}-{jobs}.jsonl"
    out.unlink(missing_ok=True)
    given = command(case, work, text, out, jobs)
    begun = time.perf_counter()
    done = subprocess.run(given, env=environment(), capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - begun
    result = json.loads(done.stdout)
    with out.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    out.unlink()
    return {
        "seconds": round(seconds, 2),
        "kilobytes_per_second": round(text.stat().st_size / 1000 / seconds, 1),
        "peak_megabytes": round(result["peak_memory"] / MEGABYTE),
        "chunks": result["chunks"],
        "rows": result["rows"],
        "sha256": digest,
        "load_before": round(os.getloadavg()[0], 1),
    }


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def killed(case: str, megabytes: float, jobs: int, minutes: float, work: Path) -> Record:
    """Plan a file, score it, kill it at half of the time, go on; parts survive as they were."""
    text = write_text(work / f"text-{megabytes:g}.txt", round(megabytes * MEGABYTE))
    with text.open("rb") as file:
        begun = time.perf_counter()
        plan = plan_chunks(file, text.name, chunk_bytes=CHUNK_BYTES, errors="strict")
        planning = time.perf_counter() - begun
    out = work / f"killed-{megabytes:g}.csv"
    shutil.rmtree(f"{out}.parts", ignore_errors=True)
    out.unlink(missing_ok=True)
    given = command(case, work, text, out, jobs)
    parts = Path(f"{out}.parts")
    kill_after(given, minutes * 30)
    before = {path.name: path.read_bytes() for path in sorted(parts.glob("part-*.csv"))}
    manifest_bytes = (parts / "manifest.json").stat().st_size
    kill_after(given, minutes * 30)
    if out.exists():
        raise SystemExit(f"{text.name} was finished in {minutes} minutes; use a larger --scale.")
    changed = [name for name, content in before.items() if (parts / name).read_bytes() != content]
    after = len([*parts.glob("part-*.csv")])
    peak = max((_peak(path) for path in parts.glob("part-*.json")), default=0)
    return {
        "planning_seconds": round(planning, 2),
        "chunks": len(plan.chunks),
        "manifest_bytes": manifest_bytes,
        "parts_before_kill": len(before),
        "parts_after_resuming": after,
        "parts_changed": len(changed),
        "peak_megabytes": round(peak / MEGABYTE),
        "load_after": round(os.getloadavg()[0], 1),
    }


def kill_after(given: list[str], seconds: float) -> None:
    """Run a command, and kill it by SIGKILL unless it ends before."""
    process = subprocess.Popen(given, env=environment(), stdout=subprocess.DEVNULL)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        time.sleep(1)  # its workers end with it


def _peak(path: Path) -> int:
    peak: int = json.loads(path.read_text())["peak_memory"]
    return peak


def measure(work: Path, **fields: Any) -> Record:
    return killed(**fields, work=work) if "minutes" in fields else throughput(**fields, work=work)


def print_table(records: list[Record]) -> None:
    print(
        "| case | MB | processes | seconds | kB/s | peak MB per process |\n"
        "|---|---|---|---|---|---|"
    )
    for record in records:
        if "seconds" in record:
            names = ("case", "megabytes", "jobs", "seconds", "kilobytes_per_second")
            values = [str(record[name]) for name in (*names, "peak_megabytes")]
            print("| " + " | ".join(values) + " |")
        else:
            print(f"\nkill -9: {record}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--work", type=Path, default=Path("runs/large-files"))
    parser.add_argument("--out", type=Path, default=RESULTS / "large_files.json")
    parser.add_argument("--table", action="store_true", help="print stored records and exit")
    given = parser.parse_args()
    if not given.table:
        given.work.mkdir(parents=True, exist_ok=True)
        configurations: list[Record] = [
            {"case": case, "megabytes": round(size * given.scale, 3), "jobs": jobs}
            for case, (_, _, size) in CASES.items()
            for jobs in (1, 2)
        ]
        kill = {"case": "ngram", "megabytes": round(1000 * given.scale, 3), "jobs": 2}
        configurations.append({**kill, "minutes": given.minutes})
        add_missing(given.out, configurations, lambda **fields: measure(given.work, **fields))
    print_table(read_records(given.out))


if __name__ == "__main__":
    main()
