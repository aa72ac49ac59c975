"""Whether a run is running, finished, stopped or failed, from what is in its folder alone.

A process that writes a run holds the kernel's lock on it, which ends with the process however that
ends; so a killed run is never taken for a running one, and no clock decides. Only where locks do
not tell (a file system without them, a machine that shares the folder but not its locks) a run
counts as running while its metrics are younger than `HEARTBEAT_SECONDS`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmlab.core.errors import UserError
from lmlab.core.failure_record import read_failure
from lmlab.core.locks import held_lock
from lmlab.core.untrusted_input import parse_integer, read_json_object
from lmlab.run_store.run_record import RunStatus
from lmlab.run_store.training_metrics import MetricsSummary

HEARTBEAT_SECONDS = 600.0
CHECKPOINT_PREFIX = "step-"


@dataclass(frozen=True, kw_only=True)
class StatusOfRun:
    """The status of a run, with how far it came."""

    status: RunStatus
    reason: str = ""
    progress: float | None = None
    seconds_left: float | None = None


def status_of_run(
    folder: Path, training: Mapping[str, Any], metrics: MetricsSummary, *, task: bool
) -> StatusOfRun:
    """The status of a run with these training settings and metrics; `task`: it is fine-tuned."""
    spent = _share_of_last_line(training, metrics.last)
    if is_running(folder):
        seconds = _value(metrics.last or {}, "seconds")
        left = seconds * (1 - spent) / spent if spent and seconds else None
        return StatusOfRun(status="running", progress=spent, seconds_left=left)
    if (error := read_failure(folder)) is not None:
        return StatusOfRun(status="failed", reason=error, progress=spent)
    if metrics.not_finite:
        return StatusOfRun(status="failed", reason="the loss is not finite", progress=spent)
    if missing := _what_is_missing(folder, training, metrics, task=task):
        return StatusOfRun(status="stopped", reason=missing, progress=spent)
    return StatusOfRun(status="finished", progress=1.0)


def is_running(folder: Path) -> bool:
    """Whether a process writes the run."""
    held = held_lock(folder)
    if held is not None:
        return held
    try:
        changed = (folder / "metrics.jsonl").stat().st_mtime
    except OSError:
        return False
    return abs(time.time() - changed) < HEARTBEAT_SECONDS


def _what_is_missing(
    folder: Path, training: Mapping[str, Any], metrics: MetricsSummary, *, task: bool
) -> str:
    """What a run lacks to be finished; empty if nothing."""
    if not (folder / "model.safetensors").exists():
        return "it has no weights yet"
    if task and not (folder / "evaluation.json").exists():
        return "it is not evaluated yet"
    progress = _last_checkpoint(folder)
    if progress is None:
        # Counting and importing make no checkpoints; a gradient step has a learning rate.
        by_gradient = metrics.last is not None and "learning_rate" in metrics.last
        return "it has no checkpoint yet" if by_gradient and not task else ""
    return "" if _is_over(training, progress) else "the budget is not spent"


def _last_checkpoint(folder: Path) -> Mapping[str, Any] | None:
    """The progress in the newest checkpoint that can be read; None without one."""
    for state in _checkpoint_states(folder):
        try:
            progress = read_json_object(state)["state"]["progress"]
        except (OSError, ValueError, KeyError, TypeError, UserError):
            continue
        if isinstance(progress, dict):
            return progress
    return None


def _checkpoint_states(folder: Path) -> Iterator[Path]:
    try:
        names = [path.name for path in (folder / "trainer").glob(f"{CHECKPOINT_PREFIX}*")]
    except OSError:
        return
    steps = [parse_integer(n.removeprefix(CHECKPOINT_PREFIX)) for n in names]
    for step in sorted((step for step in steps if step is not None), reverse=True):
        yield folder / "trainer" / f"{CHECKPOINT_PREFIX}{step}" / "state.json"


def _is_over(training: Mapping[str, Any], progress: Mapping[str, Any]) -> bool:
    """Whether a budget is spent, or training stopped early, at this progress."""
    stale, patience = _value(progress, "stale_validations"), _value(training, "patience")
    if patience and stale >= patience:
        return True
    if (share := _share(training, progress)) is not None and share >= 1:
        return True
    # EM stops by itself once the likelihood gains next to nothing; it has no best score.
    by_em = bool(stale) and _value(progress, "best_score") == float("inf")
    return by_em and not patience


def _share_of_last_line(
    training: Mapping[str, Any], last: Mapping[str, Any] | None
) -> float | None:
    """The share of the budget that is spent at the last training line."""
    if last is None:
        return None
    # `epochs` counts the share of the current epoch too; some fitters write whole ones alone.
    share = _share(training, {**last, "epoch": last.get("epochs", last.get("epoch"))})
    return None if share is None else min(share, 1.0)


def _share(training: Mapping[str, Any], counters: Mapping[str, Any]) -> float | None:
    """The largest share spent of the budgets in epochs, steps and minutes."""
    per_unit = {"epochs": ("epoch", 1.0), "steps": ("step", 1.0), "minutes": ("seconds", 60.0)}
    shares = [
        _value(counters, counter) / (budget * scale)
        for name, (counter, scale) in per_unit.items()
        if (budget := _value(training, name)) > 0
    ]
    return max(shares) if shares else None


def _value(values: Mapping[str, Any], name: str) -> float:
    value = values.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0
