"""The record of a sweep on disk: its plan (sweep.json) and a log of what happened (trials.jsonl).

A line of the log is written and synced before anything depends on it, so a sweep that is killed at
any moment repeats no finished training; a damaged last line was being written and is dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lmlab.core.atomic_files import no_follow, telling_disk_errors, write_text
from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import parse_json, read_json_object
from lmlab.experiments.search_space import Point
from lmlab.experiments.sweep_plan import SweepPlan
from lmlab.experiments.sweep_spec import EXTENDABLE
from lmlab.experiments.training_tasks import TrainingOutcome

RECORD_FILE, LOG_FILE = "sweep.json", "trials.jsonl"
RECORD_FORMAT = 1


@dataclass
class SweepLog:
    """What happened in a sweep so far."""

    out: Path
    points: dict[int, Point] = field(default_factory=dict)
    """By number of the trial."""
    outcomes: dict[str, TrainingOutcome] = field(default_factory=dict)
    """By name of the training."""
    seconds: float = 0.0
    """Wall-clock time of the sweep, over all sessions, at the last line."""

    @property
    def runs(self) -> Path:
        """The folder of the runs."""
        return self.out / "runs"

    @classmethod
    def read(cls, out: Path) -> SweepLog:
        """The log in a folder; empty where there is none."""
        log, path = cls(out=out), out / LOG_FILE
        if not path.exists():
            return log
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        for number, text in enumerate(lines, 1):
            try:
                log._take(parse_json(text))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                if number < len(lines):
                    raise UserError(
                        f"line {number} of {path} is damaged ({error}); restore the file, or "
                        "choose another --out."
                    ) from error
        return log

    def _take(self, line: dict[str, Any]) -> None:
        event, self.seconds = line.pop("event"), float(line.pop("elapsed"))
        if event == "trial":
            self.points[int(line["number"])] = dict(line["point"])
        else:
            outcome = TrainingOutcome.from_record(line)
            self.outcomes[outcome.name] = outcome

    def add_point(self, number: int, point: Point) -> None:
        """Record a proposal."""
        self.points[number] = point
        self._append({"event": "trial", "number": number, "point": point})

    def add_outcome(self, outcome: TrainingOutcome) -> None:
        """Record what came of a training."""
        self.outcomes[outcome.name] = outcome
        self._append({"event": "training", **asdict(outcome)})

    def rewrite(self, *, without_failed: bool) -> None:
        """Write the log anew, without a damaged line; `without_failed`, those are trained again."""
        if without_failed:
            self.outcomes = {k: v for k, v in self.outcomes.items() if v.state != "failed"}
        lines: list[dict[str, Any]] = [
            {"event": "trial", "number": number, "point": point}
            for number, point in self.points.items()
        ]
        lines += [{"event": "training", **asdict(item)} for item in self.outcomes.values()]
        text = "".join(self._line(line) for line in lines)
        if text or (self.out / LOG_FILE).exists():
            write_text(self.out / LOG_FILE, text)

    def _append(self, line: Mapping[str, Any]) -> None:
        path = self.out / LOG_FILE
        with telling_disk_errors(path), open(path, "a", encoding="utf-8", opener=no_follow) as file:
            file.write(self._line(line))
            file.flush()
            os.fsync(file.fileno())

    def _line(self, line: Mapping[str, Any]) -> str:
        record = {**line, "elapsed": round(self.seconds, 3)}
        return json.dumps(record, ensure_ascii=False) + "\n"


def read_log(plan: SweepPlan, out: Path) -> SweepLog:
    """The log of a plan; a UserError where it holds what the plan could not have written."""
    log = SweepLog.read(out)
    space = {item.name: item for item in plan.spec.space}
    points = log.points.values()
    right = sorted(log.points) == list(range(len(log.points))) and all(
        point.keys() == space.keys() and all(space[name].contains(point[name]) for name in point)
        for point in points
    )
    finished = [item for item in log.outcomes.values() if item.state == "finished"]
    if not right or any(outcome.value is None for outcome in finished):
        raise UserError(
            f"{out / LOG_FILE} does not fit the spec; restore it, or choose another --out."
        )
    return log


def check_same_plan(plan: SweepPlan, out: Path) -> None:
    """A UserError where the folder holds another sweep; only its budget may differ."""
    path = out / RECORD_FILE
    if not path.exists():
        if (out / LOG_FILE).exists():
            raise UserError(f"{out} has trials and no {RECORD_FILE}; choose another --out.")
        return
    try:
        before = dict(read_json_object(path)["spec"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not the record of a sweep; choose another --out.") from error
    now = plan.record()
    for name in sorted(before.keys() | now.keys()):
        if name not in EXTENDABLE and before.get(name) != now.get(name):
            raise UserError(
                f"the sweep in {out} was started with another {_called(name)} than this spec's; "
                "continue it unchanged (only trials and hours may grow), or choose another --out."
            )


def _called(name: str) -> str:
    names = {
        "corpus": "text in its data",
        "systems": "system",
        "options": "size, tokenizer or budget",
    }
    return names.get(name, name)
