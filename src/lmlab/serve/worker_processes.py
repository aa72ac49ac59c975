"""The worker processes of a server: started, watched, and started again where one ends."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from lmlab.core.child_processes import start_child
from lmlab.core.errors import UserError
from lmlab.core.limits import raised_limits
from lmlab.core.manifest import verifies
from lmlab.core.registry import registered_systems
from lmlab.core.system_origin import FileOrigin
from lmlab.serve.serving import options_for_workers, run_path
from lmlab.serve.serving_options import ServingOptions
from lmlab.serve.worker import READY

if TYPE_CHECKING:
    from lmlab.verbs.loading import GivenModel

RESTART_SECONDS = 1.0
"""Pause before a worker that ended is started again."""
STOP_SECONDS = 10.0


@dataclass(eq=False)
class Worker:
    """One process and the requests that it works on."""

    number: int
    socket_path: str
    process: subprocess.Popen[str]
    ready: bool = False
    error: str | None = None
    """Why it could not load its models."""
    requests: int = 0
    readiness: threading.Event = field(default_factory=threading.Event)


def given_system_files() -> list[str]:
    """The files of systems that were given to this process, which workers need too."""
    systems = registered_systems().values()
    return [str(system.file) for system in systems if isinstance(system.origin, FileOrigin)]


class WorkerProcesses:
    """As many workers as wanted, each with a thread that waits for its end."""

    def __init__(
        self, runs: Sequence[GivenModel], options: ServingOptions, *, key: str | None
    ) -> None:
        if not hasattr(socket, "AF_UNIX") or not hasattr(os, "dup2"):
            raise UserError("several workers need Unix sockets; use --workers 1 here.")
        self.folder = Path(tempfile.mkdtemp(prefix="lmlab-serve-"))  # only this user may enter it
        self.settings = {
            "runs": [run_path(run) for run in runs],
            "options": options_for_workers(options, key),
            "limits": raised_limits(),
            "verify": verifies(),
            "system_files": given_system_files(),
        }
        self.count = options.workers
        self.workers: dict[int, Worker] = {}
        self.restarts = 0
        self._closing = False

    def __enter__(self) -> Self:
        """Start all workers and wait until they have loaded their models."""
        try:
            started = [self._start(number) for number in range(self.count)]
            for worker in started:
                worker.readiness.wait()
                if not worker.ready:
                    raise UserError(worker.error or "a worker ended before it was ready.")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def choose(self, tried: Sequence[Worker] = ()) -> Worker | None:
        """The ready worker with the fewest requests; None if there is none."""
        untried = [each for each in self.ready() if each not in tried]
        return min(untried, key=lambda worker: (worker.requests, worker.number), default=None)

    def ready(self) -> list[Worker]:
        """The workers that answer."""
        return [worker for worker in self.workers.values() if worker.ready]

    def _start(self, number: int) -> Worker:
        path = str(self.folder / f"{number}-{self.restarts}.socket")
        process = start_child(
            [sys.executable, "-m", "lmlab.serve.worker"],
            environment=os.environ,
            errors=sys.stderr.buffer,
        )
        worker = Worker(number, path, process)
        self.workers[number] = worker
        assert process.stdin is not None
        process.stdin.write(json.dumps(self.settings | {"socket": path}) + "\n")
        process.stdin.flush()
        threading.Thread(target=self._watch, args=(worker,), daemon=True).start()
        return worker

    def _watch(self, worker: Worker) -> None:
        """Note when a worker is ready; start another when it has ended."""
        assert worker.process.stdout is not None
        was_ready = False
        for line in worker.process.stdout:
            if line.strip() == READY:
                worker.ready = was_ready = True
            elif line.startswith("error: "):
                worker.error = line.removeprefix("error: ").strip()
            worker.readiness.set()
        worker.process.wait()
        worker.ready = False
        worker.readiness.set()
        if self._closing or not was_ready:
            return
        self.restarts += 1
        print(f"worker {worker.number} has ended; another is started.", file=sys.stderr, flush=True)
        time.sleep(RESTART_SECONDS)
        if not self._closing:
            self._start(worker.number)

    def _stop(self) -> None:
        self._closing = True
        for worker in self.workers.values():
            worker.process.terminate()
        for worker in self.workers.values():
            try:
                worker.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                worker.process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
