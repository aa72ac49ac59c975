"""Long experiments, as the queue sees them: a command, its cost, and how far it is.

A benchmark declares its own in a function `experiments()` and is listed in `run_queue.SOURCES`:

    def experiments() -> list[Experiment]:
        return [
            Experiment(
                name="memory.lstm.seed0",
                group="claims",
                command=("benchmarks/notes/memory.py", "--only", "lstm.seed0"),
                minutes=40,
                record="memory/lstm.seed0.json",
            )
        ]

Whether one is finished is read from its record, and its epoch from its run folder; neither is
stored anywhere else. The command must write the record when it is finished, resume its own work
where it was killed, and stop on SIGTERM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, kw_only=True)
class Folders:
    """Where experiments find their data, and leave run folders, checkpoints and records."""

    runs: Path
    records: Path = RESULTS
    data: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One command of the queue."""

    name: str
    group: str
    command: tuple[str, ...]
    """A script of the repository and its arguments; {data}, {runs} and {records} are folders."""
    minutes: float
    """Estimated minutes on one core, from beginning to end."""
    record: str
    """File below the records that exists when it is finished."""
    run: str = ""
    """Its run folder below the runs, if it trains one."""
    epochs: int = 0
    needs: tuple[str, ...] = ()
    """Names of the experiments that it starts from."""

    def finished(self, folders: Folders) -> bool:
        return (folders.records / self.record).exists()

    def epoch(self, folders: Folders) -> int:
        """The last epoch that was evaluated; 0 if it was not begun."""
        metrics = folders.runs / self.run / "metrics.jsonl"
        return max((line["epoch"] for line in _evaluations(metrics)), default=0)

    def minutes_left(self, folders: Folders) -> float:
        if self.finished(folders):
            return 0.0
        share = self.epoch(folders) / self.epochs if self.epochs else 0.0
        return self.minutes * (1 - min(share, 1.0))

    def arguments(self, folders: Folders) -> list[str]:
        """The command with the folders filled in."""
        places = {"data": folders.data, "runs": folders.runs, "records": folders.records}
        return [part.format(**places) for part in self.command]


@dataclass(frozen=True, kw_only=True)
class GrowingExperiment(Experiment):
    """An experiment whose record grows with each epoch: a list `epochs`, the first before any."""

    def finished(self, folders: Folders) -> bool:
        return self.epoch(folders) >= self.epochs

    def epoch(self, folders: Folders) -> int:
        path = folders.records / self.record
        if not path.exists():
            return 0
        return len(json.loads(path.read_text(encoding="utf-8"))["epochs"]) - 1


def _evaluations(metrics: Path) -> Iterator[dict[str, int]]:
    """The evaluations in metrics.jsonl; a line that was cut off by a kill is left out."""
    if not metrics.is_file():
        return
    for line in metrics.read_text(encoding="utf-8").splitlines():
        try:
            measured = json.loads(line)
        except ValueError:
            continue
        if measured.get("event") in ("test", "validation"):
            yield measured
