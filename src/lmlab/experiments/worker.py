"""A process that runs tasks for a `LocalExecutor`: tasks in, outcomes out, a line of JSON each.

What a task prints goes to its log; standard output carries the outcomes alone.
"""

from __future__ import annotations

import os
import sys

from lmlab.core.child_processes import ParentPipe
from lmlab.core.limits import set_limits
from lmlab.experiments.tasks import Task, run_logged


def main() -> None:
    """Run the tasks that the parent writes, until it closes the pipe or ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    set_limits(sys.argv[1:])
    os.dup2(2, 1)  # whatever is printed is no outcome
    try:
        for line in ParentPipe():
            answers.write(run_logged(Task.from_json(line)).to_json() + "\n")
            answers.flush()
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(1)  # stopped between two tasks; nobody reads on


if __name__ == "__main__":
    main()
