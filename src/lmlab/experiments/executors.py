"""Where tasks run: the `Executor` interface; this process, or processes of this machine.

An executor takes tasks (plain data) and gives outcomes. It decides nothing about them, so that the
results of an experiment do not depend on it.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import IO, Protocol, Self

from lmlab.core.child_processes import start_child
from lmlab.core.errors import UserError
from lmlab.core.limits import raised_limits
from lmlab.experiments.executor_options import ExecutorOptions
from lmlab.experiments.tasks import Task, TaskOutcome, run_task
from lmlab.training.progress import StopSignals

POLL_SECONDS = 0.1
WORKER = "lmlab.experiments.worker"


class Executor(Protocol):
    """Runs tasks somewhere; a context, in which an orderly stop can be asked for."""

    @property
    def free(self) -> int:
        """How many more tasks it takes now."""

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop: what runs writes a checkpoint and is `interrupted`."""

    def submit(self, task: Task) -> None:
        """Start a task, if `free` is positive."""

    def wait(self) -> list[TaskOutcome]:
        """The next outcomes; blocks until there is one."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop what still runs, and wait for its checkpoints."""


def make_executor(
    options: ExecutorOptions, *, threads: int, folder: Path | None, quiet: bool = True
) -> Executor:
    """The executor that the options name; `folder` is what its tasks write in."""
    if options.on is None:
        if options.gpus:
            raise UserError("--gpus does not apply to this machine; add --on ray.")
        return local_executor(
            1 if options.jobs is None else options.jobs, threads=threads, quiet=quiet
        )
    from lmlab.experiments.ray_cluster import Resources
    from lmlab.experiments.ray_executor import RayExecutor

    resources = Resources(cpus=threads, gpus=options.gpus)
    return RayExecutor(options.on, folder=folder, resources=resources, jobs=options.jobs)


def local_executor(jobs: int, *, threads: int, quiet: bool = True) -> Executor:
    """This process for one job, else that many processes of this machine."""
    if jobs < 1:
        raise UserError(f"jobs must be at least 1, got {jobs}.")
    return InProcessExecutor(quiet=quiet) if jobs == 1 else LocalExecutor(jobs, threads=threads)


class InProcessExecutor:
    """One task after the other in this process."""

    def __init__(self, *, quiet: bool = True) -> None:
        self.stopping = False
        self._quiet = quiet
        self._tasks = deque[Task]()

    @property
    def free(self) -> int:
        return 1 - len(self._tasks)

    def submit(self, task: Task) -> None:
        self._tasks.append(task)

    def wait(self) -> list[TaskOutcome]:
        outcome = run_task(self._tasks.popleft(), quiet=self._quiet)
        self.stopping = outcome.state == "interrupted"
        return [outcome]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing runs on."""


class LocalExecutor:
    """Processes of this machine, which end with this one; each runs one task after the other."""

    def __init__(self, jobs: int, *, threads: int) -> None:
        self._jobs = jobs
        self._environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self._workers: list[_Worker] = []
        self._outcomes = SimpleQueue[tuple[_Worker, TaskOutcome]]()
        self._signals = StopSignals()
        self._asked_to_stop = False

    @property
    def free(self) -> int:
        return self._jobs - sum(worker.task is not None for worker in self._workers)

    @property
    def stopping(self) -> bool:
        return self._signals.stop_requested

    def submit(self, task: Task) -> None:
        idle = next((w for w in self._workers if w.task is None and w.alive), None)
        if idle is None:
            idle = _Worker(self._environment, self._outcomes)
            self._workers.append(idle)
        idle.start(task)

    def wait(self) -> list[TaskOutcome]:
        while True:
            if self.stopping and not self._asked_to_stop:
                self._stop()
            try:
                worker, outcome = self._outcomes.get(timeout=POLL_SECONDS)
            except Empty:
                continue
            if not worker.alive and worker in self._workers:
                self._workers.remove(worker)
                worker.close()
            if not worker.alive and self.stopping and outcome.state == "failed":
                outcome = TaskOutcome(name=outcome.name, state="interrupted")
            return [outcome]

    def _stop(self) -> None:
        self._asked_to_stop = True
        for worker in self._workers:
            worker.interrupt()

    def __enter__(self) -> Self:
        self._signals.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._stop()
            for worker in self._workers:
                worker.close()
        finally:
            self._signals.__exit__(*error)


class _Worker:
    """A child process, and the thread that reads its answers."""

    def __init__(
        self, environment: dict[str, str], outcomes: SimpleQueue[tuple[_Worker, TaskOutcome]]
    ) -> None:
        self.task: Task | None = None
        self.alive = True
        self._lock = threading.Lock()
        self._outcomes = outcomes
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = start_child(
            [sys.executable, "-m", WORKER, *raised_limits()],
            environment=environment,
            errors=self._errors,
        )
        self._reader = threading.Thread(target=self._read, name="worker-answers", daemon=True)
        self._reader.start()

    def start(self, task: Task) -> None:
        """Give it a task."""
        with self._lock:
            self.task = task
            if not self.alive:
                self._report_death(task)
                return
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has died, which its reader reports
            self._process.stdin.write(f"{task.to_json()}\n")
            self._process.stdin.flush()

    def interrupt(self) -> None:
        """Ask it to write a checkpoint and end what it does."""
        if self.task is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """Let it end, and wait for it."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._reader.join()
        self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                outcome = TaskOutcome.from_json(line)
                self.task = None
                self._outcomes.put((self, outcome))
        self._process.wait()
        with self._lock:
            self.alive = False
            if self.task is not None:
                self._report_death(self.task)

    def _report_death(self, task: Task) -> None:
        failure = _death_sentence(self._process.wait(), self._last_words())
        self.task = None
        outcome = TaskOutcome(name=task.name, state="failed", failure=failure)
        self._outcomes.put((self, outcome))

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


def _death_sentence(code: int, last_words: str) -> str:
    """Why a process that gave no answer ended."""
    if code >= 0:
        return f"its process ended with code {code}{last_words and f' ({last_words})'}."
    name = signal.Signals(-code).name
    memory = ", as when memory runs out" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{memory}."


def remove_if_empty(folder: Path) -> None:
    """Remove a folder in which nothing was written."""
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
