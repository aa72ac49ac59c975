"""What runs on a Ray worker: it checks that the worker fits the experiment, then runs a task."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from lmlab.core.untrusted_input import parse_dataclass, parse_json


@dataclass(frozen=True, kw_only=True)
class WorkerCall:
    """What a worker is called with."""

    folder: str
    """The working directory of the experiment; entered where the worker has it."""
    versions: dict[str, str]
    """The packages that results depend on, as they are installed where the experiment is."""
    limits: list[str]
    """Raised limits."""
    shared_file: str = ""
    """A file that the worker must see …"""
    token: str = ""
    """… with this content, and in whose folder it must be able to write."""
    task: str = ""
    """The task as JSON; without one the worker only reports."""

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """What a worker found, and the outcome of its task if all was right."""

    host: str
    versions: dict[str, str]
    storage: str
    """What is wrong with the shared folder; empty if nothing is."""
    outcome: str = ""
    """As JSON; empty where the worker refused the task or had none."""

    @classmethod
    def from_json(cls, line: str) -> WorkerReport:
        """The report that a worker wrote; a ValueError where it is none."""
        return parse_dataclass(cls, parse_json(line))


def worker_function() -> Callable[[str], str]:
    """The function that Ray runs: a `WorkerCall` in, a `WorkerReport` out, both JSON.

    It is a closure, so that Ray sends its code: a worker with another lmlab, or none, can report.
    It must use no name of this module.
    """

    def run(line: str) -> str:
        import json
        import os
        import socket
        from importlib import import_module
        from pathlib import Path

        def version(package: str) -> str:
            try:
                return str(import_module(package).__version__).partition("+")[0]
            except ImportError:
                return "none"

        def storage_problem(path: str, token: str) -> str:
            if not path:
                return ""
            try:
                if Path(path).read_text(encoding="utf-8") != token:
                    return "does not see"
            except OSError:
                return "does not see"
            return "" if os.access(Path(path).parent, os.W_OK) else "cannot write in"

        call: dict[str, Any] = json.loads(line)
        report = {
            "host": socket.gethostname(),
            "versions": {package: version(package) for package in call["versions"]},
            "storage": storage_problem(call["shared_file"], call["token"]),
        }
        if call["task"] and not report["storage"] and report["versions"] == call["versions"]:
            from lmlab.core.limits import set_limits
            from lmlab.experiments.tasks import Task, run_logged

            if os.path.isdir(call["folder"]):
                os.chdir(call["folder"])
            set_limits(call["limits"])
            report["outcome"] = run_logged(Task.from_json(call["task"])).to_json()
        return json.dumps(report)

    return run
