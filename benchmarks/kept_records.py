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


def fill(path: Path, asked: Iterable[Record], make: Callable[..., Record]) -> list[Record]:
    """The records at `path`, after adding the missing ones of `asked` (given by fields).

    `make` is called with these fields; its result is saved with them at once.
    """
    records = read(path)
    for fields in asked:
        if any(fields.items() <= record.items() for record in records):
            continue
        records.append(fields | make(**fields))
        print(records[-1], flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    return records


def read(path: Path) -> list[Record]:
    if not path.exists():
        return []
    found: list[Record] = json.loads(path.read_text(encoding="utf-8"))
    return found


def spread(values: list[float], digits: int = 3) -> str:
    """Mean over seeds with half of their range; for one seed its value."""
    if not values:
        return ""
    half = f" ± {(max(values) - min(values)) / 2:.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{half}"


def options(description: str, out: Path, seeds: int) -> argparse.ArgumentParser:
    """The options of every such benchmark."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--table", action="store_true", help="print what has been measured")
    return parser
