"""Tasks on a Ray cluster: reserved resources, shared storage, lost tasks given again.

Ray places and runs the tasks. What it does not know is done here: a worker whose version or storage
does not fit is refused, and a task whose process or node died is given again and resumes from its
last checkpoint. Only strings of JSON travel, and a result is what is in the shared folder.
"""

from __future__ import annotations

import os
import re
import secrets
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from lmlab.core.atomic_files import telling_disk_errors, write_text
from lmlab.core.child_processes import GRACE_SECONDS
from lmlab.core.errors import LmlabWarning, UserError
from lmlab.core.limits import raised_limits
from lmlab.experiments.ray_cluster import (
    Resources,
    check_address,
    connect,
    import_ray,
    slots_by_node,
)
from lmlab.experiments.ray_worker import WorkerCall, WorkerReport, worker_function
from lmlab.experiments.tasks import Task, TaskOutcome
from lmlab.training.progress import StopSignals

POLL_SECONDS = 0.5
PROBE_SECONDS = 300.0
"""How long the nodes may take to report; each starts a process first."""
MAX_DEATHS = 3
"""Deaths of a task's own process after which it counts as failed; lost nodes do not count."""
SHARED_FILE = ".lmlab-shared"
VERSIONED = ("lmlab", "torch")


@dataclass(frozen=True)
class _Given:
    """A task that Ray has."""

    task: Task
    deaths: int
    """How often its process died before."""
    nodes: frozenset[str]
    """The nodes that were alive when it was given."""


class RayExecutor:
    """Runs tasks on the Ray cluster that `on` names; see `ray_cluster.connect`."""

    def __init__(
        self, on: str, *, folder: Path | None, resources: Resources, jobs: int | None = None
    ) -> None:
        """`folder` is on storage that this machine and all nodes share, checked on every node.

        At most `jobs` tasks are given at once, by default all that fit and as many that wait.
        """
        check_address(on)
        if jobs is not None and jobs < 1:
            raise UserError(f"jobs must be at least 1, got {jobs}.")
        if folder is not None and re.match(r"[a-z0-9+.-]{2,}:/", str(folder)):
            raise UserError(
                f"runs need a folder with locks and renames, got {folder}; mount the storage on "
                "all nodes and give its path."
            )
        self._ray = import_ray()
        self._on, self._folder, self._resources, self._jobs = on, folder, resources, jobs
        self._call = WorkerCall(
            folder=os.getcwd(),
            versions={package: installed_version(package) for package in VERSIONED},
            limits=raised_limits(),
        )
        self._given: dict[Any, _Given] = {}
        self._signals = StopSignals()
        self._cancelled = self._owns_connection = False

    @property
    def free(self) -> int:
        most = self._jobs or 2 * sum(slots_by_node(self._resources).values())
        return max(most, 1) - len(self._given)

    @property
    def stopping(self) -> bool:
        return self._signals.stop_requested

    def submit(self, task: Task) -> None:
        self._give(task, deaths=0)

    def _give(self, task: Task, *, deaths: int) -> None:
        call = replace(self._call, task=task.to_json())
        given = _Given(task, deaths, frozenset(slots_by_node(self._resources)))
        self._given[self._remote.remote(call.to_json())] = given

    def wait(self) -> list[TaskOutcome]:
        while True:
            if self.stopping:
                self._cancel()
            ready, _ = self._ray.wait(list(self._given), num_returns=1, timeout=POLL_SECONDS)
            outcomes = [self._collect(reference) for reference in ready]
            if known := [outcome for outcome in outcomes if outcome is not None]:
                return known

    def _collect(self, reference: Any) -> TaskOutcome | None:
        """The outcome of a task that has ended; None if it was lost and given again."""
        errors, given = self._ray.exceptions, self._given.pop(reference)
        try:
            report = WorkerReport.from_json(self._ray.get(reference))
        except errors.TaskCancelledError:
            return TaskOutcome(name=given.task.name, state="interrupted")
        except errors.RayTaskError as error:
            reason = one_line(error.cause)
            return TaskOutcome(name=given.task.name, state="failed", failure=f"{reason}.")
        except errors.RayError as error:
            return self._lost(given, error)
        self._check(report)
        outcome = TaskOutcome.from_json(report.outcome)
        if outcome.state == "interrupted" and not self.stopping:
            return self._give_again(given, "its node is shutting down", deaths=given.deaths)
        return outcome

    def _lost(self, given: _Given, error: Exception) -> TaskOutcome | None:
        """Give a task again whose process died; after some deaths it has failed."""
        name, deaths = given.task.name, given.deaths
        if self.stopping:
            return TaskOutcome(name=name, state="interrupted")
        if isinstance(error, self._ray.exceptions.OutOfMemoryError):
            reason = "its node ran out of memory"
        elif given.nodes - slots_by_node(self._resources).keys():
            return self._give_again(given, "a node was lost", deaths=deaths)
        else:
            reason = "its process was ended, as when memory runs out"
        if deaths + 1 < MAX_DEATHS:
            return self._give_again(given, reason, deaths=deaths + 1)
        failure = f"{reason}, {MAX_DEATHS} times."
        return TaskOutcome(name=name, state="failed", failure=failure)

    def _give_again(self, given: _Given, reason: str, *, deaths: int) -> None:
        warnings.warn(
            f"{given.task.name} stopped ({reason}); it runs again, a training from its last "
            "checkpoint.",
            LmlabWarning,
            stacklevel=2,
        )
        self._give(given.task, deaths=deaths)

    def _check(self, report: WorkerReport) -> None:
        """A UserError where a worker does not fit the experiment."""
        for package, here in self._call.versions.items():
            there = report.versions.get(package, "none")
            if there != here:
                raise UserError(
                    f"the Ray worker on {report.host} has {package} {there}, this machine {here}; "
                    "install the same version on all nodes."
                )
        if report.storage:
            raise UserError(
                f"the Ray worker on {report.host} {report.storage} {self._folder}; give a folder "
                "on storage that all nodes share under the same path."
            )

    def _probe_nodes(self) -> None:
        """Let every node that tasks fit on report, before anything runs."""
        nodes = slots_by_node(self._resources)
        if not nodes:
            raise UserError(
                f"no node of the Ray cluster has the {self._resources} that a task needs; lower "
                "--threads or --gpus, or add a node."
            )
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        probes = [
            self._remote.options(
                num_cpus=0,
                num_gpus=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
            ).remote(self._call.to_json())
            for node in nodes
        ]
        try:
            reports = self._ray.get(probes, timeout=PROBE_SECONDS)
        except self._ray.exceptions.RayError as error:
            raise UserError(
                f"a node of the Ray cluster does not answer ({one_line(error)}); remove it."
            ) from error
        for report in reports:
            self._check(WorkerReport.from_json(report))

    def _cancel(self) -> None:
        """Interrupt what runs: trainings write a checkpoint, and what waits does not start."""
        if not self._cancelled:
            self._cancelled = True
            for reference in self._given:
                self._ray.cancel(reference, force=False)

    def __enter__(self) -> Self:
        self._owns_connection = connect(self._on)
        try:
            reserved = {"num_cpus": self._resources.cpus, "num_gpus": self._resources.gpus}
            self._remote = self._ray.remote(**reserved, max_retries=0)(worker_function())
            if self._folder is not None:
                self._write_shared_file(self._folder.absolute() / SHARED_FILE)
            self._probe_nodes()
        except BaseException:
            self._disconnect()
            raise
        self._signals.__enter__()  # after Ray's own handlers
        return self

    def _write_shared_file(self, path: Path) -> None:
        token = secrets.token_hex(16)
        with telling_disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, token)
        self._call = replace(self._call, shared_file=str(path), token=token)

    def __exit__(self, *error: object) -> None:
        try:
            if self._given:
                self._cancel()
                references = list(self._given)
                self._ray.wait(references, num_returns=len(references), timeout=GRACE_SECONDS)
        finally:
            self._signals.__exit__(*error)
            self._disconnect()

    def _disconnect(self) -> None:
        with suppress(OSError):
            if self._call.shared_file:
                Path(self._call.shared_file).unlink()
        if self._owns_connection:
            self._ray.shutdown()


def installed_version(package: str) -> str:
    """The version of an importable package, without the build (`+cpu`)."""
    return str(import_module(package).__version__).partition("+")[0]


def one_line(error: object) -> str:
    """The words of an error of Ray, which has many lines, without a final full stop."""
    return " ".join(str(error).split())[:300].rstrip(".")
