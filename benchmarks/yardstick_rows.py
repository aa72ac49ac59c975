"""A row of the yardstick: its trials, its training, its scoring and its record, each resumable.

Every stage is a process of its own (`yardstick_training.py`), and its result is a file beside the
run, so that a row that was stopped continues where it was. The recipe is chosen on TUNED_ON
alone, but for the order of an n-gram.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cells import Processes, note_commit, software
from experiment import Folders
from yardstick_corpora import PreparedCorpus, prepare
from yardstick_systems import (
    SIZE,
    TOKENIZER,
    Trial,
    base_settings,
    chosen_settings,
    length_settings,
    next_trial,
)

from lmlab.core.atomic_files import write_text
from lmlab.core.card import Card
from lmlab.core.registry import find_system

TUNED_ON = "multi30k"
"""The corpus on whose validation split recipes are chosen."""
MINUTES, TRIAL_MINUTES = 3.0, 0.5
"""CPU minutes of a training and of a trial."""
POINTS, LEAST_STEPS = 12, 40
"""Validations of a training; fewer if there are not so many steps between two of them."""
SEED = 0
FOLDER = "yardstick"
"""Of the records below the results, and of the runs below the runs."""

Record = dict[str, Any]


def settings_on(card: Card, corpus: PreparedCorpus, size: str) -> dict[str, Any]:
    """Settings of every training of a system on a corpus."""
    tokens = max(len(text.encode()) for text in corpus.texts("train")) + 2
    return {**base_settings(card), **length_settings(card.name, size, tokens)}


class StoppedError(Exception):
    """The row was asked to stop; the same command continues it."""


def has_trials(card: Card, corpus: str) -> bool:
    """Whether a row has trials of its own: on TUNED_ON, and where they take seconds (counting)."""
    return corpus == TUNED_ON or card.fitting == "counting"


def row_name(corpus: str, system: str) -> str:
    return f"{corpus}.{system}"


def record_path(folders: Folders, corpus: str, system: str) -> Path:
    return folders.records / FOLDER / f"{row_name(corpus, system)}.json"


def read_record(folders: Folders, corpus: str, system: str) -> Record | None:
    """The record of a row, if it was measured."""
    path = record_path(folders, corpus, system)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


@dataclass(frozen=True, kw_only=True, eq=False)
class RowMeasurement:
    """The measurement of one system on one corpus."""

    card: Card
    corpus: PreparedCorpus
    folders: Folders
    processes: Processes

    @property
    def folder(self) -> Path:
        return self.folders.runs / FOLDER / row_name(self.corpus.name, self.card.name)

    def measure(self) -> Record:
        """Make the record, from the stages that are done and those that are left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        note_commit(self.folder)
        trials = self._trials()
        recipe = self._recipe(trials)
        settings = {**settings_on(self.card, self.corpus, SIZE), **recipe["settings"]}
        training = self._fit("run", settings | self._validations(recipe["steps"]), MINUTES)
        record = self._description(settings, recipe) | {"trials": trials, "training": training}
        if "failed" not in training:
            record["test"] = self._score("run")
        for part in (training, record.get("test", {})):
            record |= {"failed": part["failed"]} if "failed" in part else {}
        path = record_path(self.folders, self.corpus.name, self.card.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        for trial in self.folder.glob("trial-*"):
            shutil.rmtree(trial, ignore_errors=True)
        return record

    def _trials(self) -> list[Record]:
        """The trials of the recipe, where there are any."""
        trials: list[Record] = []
        while has_trials(self.card, self.corpus.name):
            made = [Trial(settings=one["settings"], loss=one.get("loss")) for one in trials]
            settings = next_trial(self.card, made)
            if settings is None:
                break
            stage = f"trial-{len(trials) + 1}"
            result = self._fit(
                stage, {**settings_on(self.card, self.corpus, SIZE), **settings}, TRIAL_MINUTES
            )
            if self.card.fitting == "counting":  # the orders are lines of the figure
                result["test"] = self._score(stage)
            kept = ("loss", "unit", "steps", "seconds", "failed", "test")
            trials.append({"settings": settings, **{k: result[k] for k in kept if k in result}})
        return trials

    def _recipe(self, trials: list[Record]) -> Record:
        """The chosen settings, and the expected steps of a training; from TUNED_ON's record."""
        if not has_trials(self.card, self.corpus.name):
            tuned = read_record(self.folders, TUNED_ON, self.card.name)
            if tuned is None:
                raise SystemExit(f"measure {self.card.name} on {TUNED_ON} first.")
            return {"settings": tuned["recipe"], "steps": tuned["training"].get("steps", 0)}
        made = [Trial(settings=one["settings"], loss=one.get("loss")) for one in trials]
        settings = chosen_settings(made)
        steps = [one.get("steps", 0) for one in trials if one["settings"] == settings]
        return {"settings": settings, "steps": sum(steps) * MINUTES / TRIAL_MINUTES}

    def _validations(self, steps: float) -> dict[str, Any]:
        """The setting of POINTS validations in so many steps of a training by steps."""
        if self.card.fitting in ("counting", "em"):
            return {}
        return {"evaluate_every": max(int(steps) // POINTS, LEAST_STEPS)}

    def _fit(self, stage: str, settings: Mapping[str, Any], minutes: float) -> Record:
        return self._stage(
            stage,
            {
                "kind": "fit",
                "system": self.card.name,
                "data": str(self.corpus.folder),
                "out": str(self.folder / stage),
                "settings": dict(settings),
                "budget": {} if self.card.fitting == "counting" else {"minutes": minutes},
                "validation_bytes": self.corpus.bytes["validation"],
                "train_bytes": self.corpus.bytes["train"],
                "size": SIZE,
                "tokenizer": TOKENIZER,
                "base": self._base(),
                "seed": SEED,
            },
        )

    def _base(self) -> str | None:
        """The run that the system is built on, if it needs one: that of another row."""
        if not self.card.base:
            return None
        name = row_name(self.corpus.name, self.card.base)
        run = self.folders.runs / FOLDER / name / "run"
        if not run.exists():
            raise SystemExit(f"{run} is missing; remove the record {name}.json and measure it.")
        return str(run)

    def _score(self, stage: str) -> Record:
        job = {
            "kind": "score",
            "run": str(self.folder / stage),
            "texts": self.corpus.texts("test"),
            "pairs": str(self.corpus.folder / "pairs.jsonl") if stage == "run" else None,
        }
        return self._stage(f"{stage}-score", job)

    def _stage(self, name: str, job: Record) -> Record:
        """The result of a job, which is run if there is none yet; one of another job is removed."""
        path, stored = (self.folder / f"{name}.{kind}.json" for kind in ("job", "result"))
        if path.exists() and json.loads(path.read_text(encoding="utf-8")) != job:
            for of in (name, f"{name}-score"):  # what was scored is no longer there
                for file in self.folder.glob(f"{of}.*"):
                    file.unlink()
            shutil.rmtree(self.folder / name, ignore_errors=True)
        if not stored.exists():
            write_text(path, json.dumps(job))
            result = self._with_sessions(name, self._run_job(name, path))
            write_text(stored, json.dumps(result) + "\n")
        loaded: Record = json.loads(stored.read_text(encoding="utf-8"))
        return loaded

    def _run_job(self, name: str, path: Path) -> Record:
        """The result of a job's process; a StoppedError if it was stopped."""
        script = str(Path(__file__).with_name("yardstick_training.py"))
        command, environment = [sys.executable, script, str(path)], one_thread_environment()
        code, output, errors = self.processes.run(command, environment)
        result: Record = json.loads(output) if output.strip() and not code else {}
        if self.processes.stopped or result.get("interrupted"):
            self._note_session(name, result)
            raise StoppedError
        if not result:
            raise SystemExit(f"{self.folder.name}, {name}: {errors.strip()[-1500:]}")
        return result

    def _note_session(self, name: str, result: Record) -> None:
        """Keep what a session that was stopped took."""
        if "cpu_seconds" in result:
            spent = {key: result[key] for key in ("cpu_seconds", "peak_mebibytes")}
            with (self.folder / f"{name}.sessions.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(spent) + "\n")

    def _with_sessions(self, name: str, result: Record) -> Record:
        """The result with the CPU seconds of all sessions, and their largest peak."""
        path = self.folder / f"{name}.sessions.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        sessions = [result, *map(json.loads, lines)]
        return result | {
            "cpu_seconds": round(sum(one["cpu_seconds"] for one in sessions), 1),
            "peak_mebibytes": max(one["peak_mebibytes"] for one in sessions),
        }

    def _description(self, settings: Record, recipe: Record) -> Record:
        """What was measured, by which code and with what."""
        command = f"python benchmarks/yardstick.py --measure {self.card.name}"
        run = self.folder / "run"
        return {
            "system": self.card.name,
            "corpus": self.corpus.figures(),
            "family": self.card.family,
            "kind": self.card.kind,
            "size": SIZE,
            "tokenizer": TOKENIZER,
            "seed": SEED,
            "minutes": MINUTES,
            "recipe": recipe["settings"],
            "settings": settings,
            "base": self.card.base,
            "command": f"{command} --corpus {self.corpus.name} --data DATA",
            "commits": (self.folder / "commits.txt").read_text(encoding="utf-8").splitlines(),
            "environment": software(run) if (run / "environment.json").exists() else {},
            "threads": 1,
        }


def one_thread_environment() -> dict[str, str]:
    return dict(os.environ) | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def measure_row(system: str, corpus: str, folders: Folders, processes: Processes) -> Record:
    """Measure one row with the usual budgets; its record, which is made only once."""
    record = read_record(folders, corpus, system)
    if record is not None:
        return record
    prepared = prepare(corpus, folders.data, folders.runs / FOLDER / "corpora")
    row = RowMeasurement(
        card=find_system(system), corpus=prepared, folders=folders, processes=processes
    )
    return row.measure()
