"""Records of the claims' benchmarks: one JSON file each, saved run by run, so that it can resume.

A file holds the command, the settings, the seeds and the records; a record holds its configuration
(with the seed), what was measured, the processor time and the commit it was measured at.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from finishing import finished
from record_file import RESULTS, mean_and_half_range

import lmlab

Record = dict[str, Any]


def parse_arguments(description: str | None, name: str) -> argparse.Namespace:
    """The options that the claims' benchmarks share; `name` is that of the record."""
    parser = argparse.ArgumentParser(description=(description or name).splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS / "claims" / f"{name}.json")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="regular expression of configurations")
    parser.add_argument("--data", default=os.environ.get("LMLAB_DATA", "DATA"))
    parser.add_argument("--table", action="store_true", help="print stored records and exit")
    parser.add_argument("--figure", type=Path, help="draw the stored records and exit")
    return parser.parse_args()


def measure_missing(
    options: argparse.Namespace,
    settings: Record,
    configurations: Iterable[Record],
    measure: Callable[..., Record],
) -> list[Record]:
    """Measure each configuration for each seed that has no record; all records.

    Nothing is measured with --table or --figure. Records of other settings are refused.
    """
    stored = _read(options.out)
    if stored and stored["settings"] != json.loads(json.dumps(settings)):
        raise SystemExit(f"{options.out} holds records of other settings; give another --out.")
    records: list[Record] = stored.get("records", [])
    if options.table or options.figure:
        return records
    wanted = [fields | {"seed": seed} for seed in range(options.seeds) for fields in configurations]
    for fields in wanted:
        name = " ".join(f"{key}={value}" for key, value in fields.items())
        if not re.search(options.only, name) or any(fields.items() <= r.items() for r in records):
            continue
        start = time.process_time()
        result = measure(**fields)
        cost = {"cpu_seconds": round(time.process_time() - start, 1), "commit": _commit()}
        records.append(fields | result | cost)
        print(name, json.dumps(result, ensure_ascii=False)[:300], flush=True)
        _save(options.out, settings, records)
    return records


def print_means(records: list[Record], keys: Iterable[str], digits: int = 3) -> None:
    """Print a line per configuration: every measured number as mean ± half the range of seeds."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record[key] for key in keys), []).append(record)
    for group, members in groups.items():
        flat = [_flatten(member) for member in members]
        means = {
            name: mean_and_half_range([f[name] for f in flat if name in f], digits)
            for name in flat[0]
            if name not in (*keys, "seed", "commit", "cpu_seconds")
        }
        shown = ", ".join(f"{name} {value}" for name, value in means.items())
        print(f"{' '.join(map(str, group))} ({len(members)} seeds): {shown}")


def _flatten(record: Record, prefix: str = "") -> dict[str, float]:
    """The numbers of a record, nested ones by dotted names."""
    numbers: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            numbers |= _flatten(value, f"{prefix}{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers[prefix + name] = float(value)
    return numbers


def _read(path: Path) -> Record:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def _save(path: Path, settings: Record, records: list[Record]) -> None:
    """Write the whole file anew, by way of another, so that a kill leaves a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    script = Path(sys.argv[0]).resolve()
    report = {
        "command": f"python benchmarks/{script.parent.name}/{script.name}",
        "threads": 1,
        "seeds": sorted({record["seed"] for record in records}),
        "settings": settings,
        "records": records,
    }
    part = path.with_suffix(".part")
    part.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)


def _commit() -> str:
    """The commit of the working tree, marked if src, the script or this file differ from it."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    watched = (":/src", str(Path(__file__)), str(Path(sys.argv[0]).resolve()))
    changed = git("status", "--porcelain", "--untracked-files=no", "--", *watched)
    return git("rev-parse", "--short=8", "HEAD") + ("+" if changed else "")


def train_model(system: str, data: Any, settings: Record, *, seed: int, **options: Any) -> Any:
    """Train into a folder that is thrown away, and load the model."""
    with tempfile.TemporaryDirectory() as folder:
        return lmlab.load(_train(Path(folder), system, data, settings, seed, options).path)


def held_out_loss(
    system: str, data: Any, settings: Record, *, seed: int, **options: Any
) -> tuple[float, int]:
    """Train likewise: the held-out nats per token at the end, and the number of parameters."""
    with tempfile.TemporaryDirectory() as folder:
        result = _train(Path(folder), system, data, settings, seed, options)
        return float(result.loss), int(result.parameters)


def _train(
    folder: Path, system: str, data: Any, settings: Record, seed: int, options: Record
) -> Any:
    out = folder / "run"
    return finished(
        lmlab.train(system, data=data, out=out, settings=settings, seed=seed, quiet=True, **options)
    )
