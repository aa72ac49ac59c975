"""Reading a run's folder as a `RunRecord`: config, metrics, checkpoints, tags and file sizes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import read_json_object
from lmlab.run_store.run_record import RunRecord
from lmlab.run_store.run_status import status_of_run
from lmlab.run_store.run_tags import read_tags
from lmlab.run_store.training_metrics import NATS_PER_TOKEN, BestFigure, read_metrics_summary

CONFIG = "config.json"
MARKS = ("manifest.json", "metrics.jsonl")
"""Files by which a folder is a run even if its config.json is damaged."""
DATED = (CONFIG, "metrics.jsonl", "model.safetensors", "evaluation.json", "failure.json")
"""Files whose time is that of the run."""


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run (of lmlab; a checkpoint of the Hub is none)."""
    return read_config(folder) is not None


def read_config(folder: Path) -> dict[str, Any] | None:
    """The config.json of a run, empty if it is damaged; None if the folder holds no run."""
    try:
        values = read_json_object(folder / CONFIG)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, UserError):
        return {} if any((folder / name).exists() for name in MARKS) else None
    if "format" in values and isinstance(values.get("system"), str):
        return values
    return None


def read_run(folder: Path) -> RunRecord | None:
    """The record of a run's folder; None if it holds none."""
    config = read_config(folder)
    if config is None:
        return None
    found = RunRecord(
        path=folder,
        system=str(config.get("system", "?")),
        status="failed",
        reason="config.json is damaged",
        changed=_changed(folder),
        disk=disk_usage(folder),
        tags=read_tags(folder),
    )
    return _described(found, config) if config else found


def _described(found: RunRecord, config: Mapping[str, Any]) -> RunRecord:
    """The record with what config and metrics say."""
    folder = found.path
    training, corpus, task = (_object(config, name) for name in ("training", "corpus", "task"))
    metrics = read_metrics_summary(folder / "metrics.jsonl")
    status = status_of_run(folder, training, metrics, task=bool(task))
    last = metrics.last or {}
    best = _evaluation(folder) if task else (metrics.best or _tuned(config))
    settings = {**_object(config, "system_config"), **training}
    settings.pop("seed", None)
    return replace(
        found,
        size=str(config.get("size", "")),
        recipe=config.get("recipe"),
        seed=config["seed"] if isinstance(config.get("seed"), int) else 0,
        data=str(task.get("data") or corpus.get("spec") or ""),
        task=str(task["name"]) if "name" in task else None,
        status=status.status,
        reason=status.reason,
        progress=status.progress,
        seconds_left=status.seconds_left,
        step=_integer(last, "step"),
        epoch=_integer(last, "epoch"),
        seconds=_number(last, "seconds"),
        **_best_fields(best, found.system),
        base=_path_of(config, "base"),
        continued_from=_path_of(config, "continued_from"),
        imported=_object(config, "imported").get("from"),
        settings=settings,
    )


def _best_fields(best: BestFigure | None, system: str) -> dict[str, Any]:
    if best is None:
        return {}
    return {
        "best": best.value,
        "metric": best.metric,
        "split": best.split,
        "unit": best.unit,
        "kind": score_kind(system) if best.unit == NATS_PER_TOKEN else "",
    }


@cache
def score_kind(system: str) -> str:
    """The kind of score of a system, from its card; empty where it is not installed."""
    from lmlab.core.registry import find_system

    try:
        return find_system(system).kind
    except UserError:
        return ""


def _evaluation(folder: Path) -> BestFigure | None:
    """The first metric of a fine-tuned run's evaluation."""
    try:
        evaluation = read_json_object(folder / "evaluation.json")
    except (OSError, ValueError, UserError):
        return None
    metrics = _object(evaluation, "metrics")
    for name, value in metrics.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            split = str(evaluation.get("split", ""))
            return BestFigure(value=float(value), metric=name, split=split, unit="")
    return None


def _tuned(config: Mapping[str, Any]) -> BestFigure | None:
    """The loss of a mixture on the text that its weights were tuned on."""
    tuning = _object(config, "tuning")
    value, split = tuning.get("nats_per_token"), str(tuning.get("split", ""))
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return BestFigure(value=float(value), metric="loss", split=split, unit=NATS_PER_TOKEN)


def disk_usage(folder: Path | str) -> int:
    """Bytes of all files below a folder; symbolic links are not followed."""
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    total += disk_usage(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    except OSError:  # removed in the meantime, or not readable
        pass
    return total


def _changed(folder: Path) -> float:
    times = []
    for name in DATED:
        try:
            times.append((folder / name).lstat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)


def _object(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = values.get(name)
    return value if isinstance(value, dict) else {}


def _path_of(config: Mapping[str, Any], role: str) -> str | None:
    path = _object(config, role).get("path")
    return path if isinstance(path, str) else None


def _integer(line: Mapping[str, Any], name: str) -> int:
    value = line.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _number(line: Mapping[str, Any], name: str) -> float:
    value = line.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0
