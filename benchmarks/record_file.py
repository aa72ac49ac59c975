"""Benchmark records in one JSON file, saved one by one, so that a benchmark can resume."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Record = dict[str, Any]
RESULTS = Path(__file__).parent / "results"


def add_missing(
    path: Path, configurations: Iterable[Record], make: Callable[..., Record]
) -> list[Record]:
    """Measure the configurations that have no record at `path`; return all records.

    `make` is called with the fields of a configuration; its result is saved with them at once.
    """
    records = read_records(path)
    for fields in configurations:
        if any(fields.items() <= record.items() for record in records):
            continue
        records.append(fields | make(**fields))
        print(records[-1], flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    return records


def read_records(path: Path) -> list[Record]:
    if not path.exists():
        return []
    records: list[Record] = json.loads(path.read_text(encoding="utf-8"))
    return records


def mean_and_half_range(values: list[float], digits: int = 3) -> str:
    """Mean over seeds ± half their range; the value alone for one seed."""
    if not values:
        return ""
    half = f" ± {(max(values) - min(values)) / 2:.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{half}"


def make_parser(description: str, out: Path, seeds: int) -> argparse.ArgumentParser:
    """Parser with the options that these benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--table", action="store_true", help="print stored records and exit")
    return parser
