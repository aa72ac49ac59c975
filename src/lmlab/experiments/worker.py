"""A process that runs trainings for a `LocalExecutor`: tasks in, outcomes out, a line of JSON each.

What a training prints goes to a log beside its run; standard output carries the outcomes alone.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from lmlab.core.child_processes import ParentPipe
from lmlab.core.limits import set_limits
from lmlab.experiments.training_tasks import (
    TrainingOutcome,
    TrainingTask,
    log_path,
    open_log,
    run_task,
)


def main() -> None:
    """Run the tasks that the parent writes, until it closes the pipe or ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    set_limits(sys.argv[1:])
    os.dup2(2, 1)  # whatever is printed is no outcome
    try:
        for line in ParentPipe():
            outcome = _run_logged(TrainingTask.from_json(line))
            answers.write(json.dumps(asdict(outcome)) + "\n")
            answers.flush()
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(1)  # stopped between two trainings; nobody reads on


def _run_logged(task: TrainingTask) -> TrainingOutcome:
    """Run a task with its output in its log, which is removed if nothing was trained."""
    log, errors = open_log(task), os.dup(2)
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        outcome = run_task(task, quiet=False)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        os.close(errors)
        os.close(log)
    path = log_path(task)
    if not path.stat().st_size or not Path(task.out).exists():
        path.unlink(missing_ok=True)
    return outcome


if __name__ == "__main__":
    main()
