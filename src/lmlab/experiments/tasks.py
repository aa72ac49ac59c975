"""A task as plain data, the name of a registered function and what it is called with; its outcome.

This is all that an executor carries. Both are JSON, so that a task runs in another process or on
another machine as it runs here.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from lmlab.core.atomic_files import no_follow, telling_disk_errors
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.untrusted_input import parse_dataclass, parse_json

TASK_FUNCTIONS = {
    "training": "lmlab.experiments.training_tasks:run_training_task",
    "chunk": "lmlab.experiments.large_files.chunk_tasks:run_chunk",
}
"""What can be run, by its name: a `TaskFunction`, imported when the first task names it."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One call of a registered function, which can be repeated after a kill."""

    name: str
    """Unique in its experiment."""
    function: str
    """A name of `TASK_FUNCTIONS`."""
    payload: dict[str, Any]
    """What the function is called with; JSON."""
    log: str | None = None
    """The file that takes what is printed where the task runs in a process of its own."""

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Task:
        """The task that `to_json` wrote."""
        return cls(**parse_json(line))


@dataclass(frozen=True, kw_only=True)
class TaskOutcome:
    """What came of a task."""

    name: str
    """The task's."""
    state: Literal["finished", "failed", "interrupted"]
    """An interrupted task continues when it is given again."""
    failure: str = ""
    """Why it failed, as one sentence."""
    result: dict[str, Any] = field(default_factory=dict)
    """What its function returned; JSON."""

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> TaskOutcome:
        """The outcome that `to_json` wrote; a ValueError where it is none."""
        return parse_dataclass(cls, parse_json(line))


TaskFunction = Callable[[Mapping[str, Any], bool], TaskOutcome]
"""Takes the payload, and whether to print nothing. It may raise; the outcome is then `failed`."""


def run_task(task: Task, *, quiet: bool = True) -> TaskOutcome:
    """Call the task's function; any error becomes a failed outcome."""
    try:
        return _task_function(task.function)(task.payload, quiet)
    except KeyboardInterrupt:
        return TaskOutcome(name=task.name, state="interrupted")
    except UserError as error:
        return TaskOutcome(name=task.name, state="failed", failure=str(error))
    except Exception as error:
        failure = unexpected_error(error, log=task.log)
        return TaskOutcome(name=task.name, state="failed", failure=failure)


def _task_function(name: str) -> TaskFunction:
    if name not in TASK_FUNCTIONS:
        raise unknown_name("task function", name, TASK_FUNCTIONS)
    module, _, attribute = TASK_FUNCTIONS[name].partition(":")
    function: TaskFunction = getattr(import_module(module), attribute)
    return function


def unexpected_error(error: Exception, *, log: str | None) -> str:
    """One sentence on an error that is no user's; the traceback is printed."""
    traceback.print_exception(error, file=sys.stderr)
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return f"{reason} ({Path(log).name} has the traceback)." if log else f"{reason}."


def run_logged(task: Task) -> TaskOutcome:
    """Run a task with this process's output in its log, which is removed if nothing was made."""
    if task.log is None:
        return run_task(task)
    path = Path(task.log)
    log, saved = _open_log(path), [os.dup(1), os.dup(2)]
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        outcome = run_task(task, quiet=False)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in zip((1, 2), saved, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(log)
    if not path.stat().st_size or not path.with_suffix("").exists():
        path.unlink(missing_ok=True)
    return outcome


def _open_log(path: Path) -> int:
    """A descriptor of a log file, empty."""
    with telling_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb", opener=no_follow) as file:
            return os.dup(file.fileno())
