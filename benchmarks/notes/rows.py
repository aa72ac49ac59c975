"""Rows of the notes' tables (003) as training runs, with the notes' figures beside them."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from cells import RESULTS, Cell
from experiment import Experiment

RECORDS = "notes"
"""Folder of the records below the results, and of the runs below the runs."""
LEAKING = frozenset({22, 23, 26, 29, 43, 44, 46, 47, *range(50, 55)})
"""Models of the notes whose inputs are divided by their deviation over the whole sentence."""

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table: one training per seed."""

    system: str
    label: str
    """Name in the notes: DLM number and mutated positions."""
    off: tuple[int, ...] = ()
    """Terms that are switched off."""
    settings: tuple[str, ...] = ()
    recipe: str = "multi30k"
    """Empty for none."""
    base: str = ""
    """Name of the training that it is built on."""
    epochs: int = 30
    seeds: int = 1
    group: str = ""
    """Group of the queue, if it is not the table's."""
    minutes: float = 0.0
    """Estimate of one training, where no record of the system on this text has its seconds."""
    notes_20: float | None = None
    notes_30: float | None = None
    notes_last: float | None = None
    """The notes' figure after `epochs`, if that is another epoch."""
    record_20: str = ""
    """Record of the same training over 20 epochs, if another benchmark made it."""

    @property
    def leaks(self) -> bool:
        """Whether the notes' model saw later words."""
        number = re.match(r"DLM(\d+)", self.label)
        return number is not None and int(number[1]) in LEAKING

    @property
    def variant(self) -> str:
        """Part of the file name that distinguishes the rows of one system."""
        parts = [f"off-{'-'.join(map(str, self.off))}"] if self.off else []
        # A run is a folder: what stays of it after each epoch does not change what is trained.
        named = [part for part in self.settings if not part.startswith("snapshot_epochs")]
        parts += [setting.replace("=", "-").replace(",", "-") for setting in named]
        parts += [self.recipe] if self.recipe not in ("", "multi30k") else []
        return "_".join([*parts, f"epochs-{self.epochs}"])

    def cell(self, protocol: str, seed: int) -> Cell:
        """The training run of this row."""
        settings = list(self.settings)
        if self.off:
            settings.append("off=" + ",".join(map(str, self.off)))
        recipe = ("--recipe", self.recipe) if self.recipe else ()
        base = ("--base", f"RUNS/{self.base}") if self.base else ()
        set_options = [part for setting in settings for part in ("--set", setting)]
        return Cell(
            protocol=protocol,
            system=self.system,
            variant=self.variant,
            seed=seed,
            arguments=(*recipe, "--epochs", str(self.epochs), *base, *set_options),
        )

    def records(self, protocol: str) -> list[Record]:
        """The records of the seeds that are finished."""
        names = [self.cell(protocol, seed).name for seed in range(self.seeds)]
        return [found for name in names if (found := read_record(f"{RECORDS}/{name}"))]

    def record_of_20(self, protocol: str) -> Record | None:
        """The record of the same training with a schedule of 20 epochs, which was run first."""
        earlier = replace(self, epochs=20).cell(protocol, 0).name
        return read_record(self.record_20 or f"{RECORDS}/{earlier}")


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of one protocol."""

    name: str
    title: str
    protocol: str
    group: str
    """Group of the queue for the first seed."""
    rows: tuple[Row, ...]
    seeds_group: str = "seeds"
    """Group for the other seeds."""
    perplexity: bool = False
    """Whether figures are perplexities."""

    def cells(self) -> list[Cell]:
        """The trainings of all rows; those over 20 epochs are not made any more."""
        return [
            row.cell(self.protocol, seed)
            for row in self.rows
            if row.epochs != 20
            for seed in range(row.seeds)
        ]

    def experiments(self) -> list[Experiment]:
        """The trainings as the queue sees them."""
        return [
            self._experiment(row, seed)
            for row in self.rows
            if row.epochs != 20
            for seed in range(row.seeds)
        ]

    def _experiment(self, row: Row, seed: int) -> Experiment:
        cell = row.cell(self.protocol, seed)
        return Experiment(
            name=cell.name,
            group=(row.group or self.group) if seed == 0 else self.seeds_group,
            command=(
                "benchmarks/notes/run.py",
                *("--data", "{data}", "--runs", f"{{runs}}/{RECORDS}"),
                *("--records", "{records}", "--jobs", "1", "--only", cell.name),
            ),
            minutes=estimated_minutes(row, self.protocol),
            record=f"{RECORDS}/{cell.name}.json",
            run=f"{RECORDS}/{cell.name}",
            epochs=row.epochs,
            needs=(row.base,) if row.base else (),
        )


def estimated_minutes(row: Row, protocol: str) -> float:
    """By the seconds of an epoch of the system on this text, where they were recorded.

    The fewest, as seconds are by the clock, and others often shared the core.
    """
    seconds = epoch_seconds().get((protocol, row.system))
    return min(seconds) * row.epochs / 60 if seconds else row.minutes


@cache
def epoch_seconds() -> dict[tuple[str, str], list[float]]:
    """Seconds of an epoch of the recorded trainings, by text and system."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for path in sorted((RESULTS / RECORDS).glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["held_out"] and (spent := record["row"].get("train_seconds")):
            key = (record["protocol"], record["system"])
            seconds.setdefault(key, []).append(spent / record["held_out"][-1]["epoch"])
    return seconds


def read_record(name: str) -> Record | None:
    """A record below the results; None if there is none."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return None
    record: Record = json.loads(path.read_text(encoding="utf-8"))
    return record
