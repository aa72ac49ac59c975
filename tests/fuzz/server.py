"""A fork server: a process that has imported everything forks a child for each input.

A fresh start of lmlab costs over a second, a fork some ten milliseconds. The child has limits of
memory, CPU time and wall time; what it prints goes into files, and how it ended is an `Outcome`.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

MEMORY = 3 << 30
"""Bytes of address space that a child may add to what the server has."""
SECONDS = 60.0
"""Wall time after which a child counts as hanging."""
ENDED = None
"""The last thing in a server's queue."""
RAISED = 70
"""Exit code of a child that raised."""

Kind = Literal["ok", "refused", "memory", "unclear", "traceback", "hang", "killed"]
FAILURES = ("unclear", "traceback", "hang", "killed")
"""Kinds that are defects. `memory` is a refusal by the last net: one sentence, memory ran out."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a child ended."""

    kind: Kind
    code: int
    """The exit code, or minus the number of the signal."""
    out: str
    err: str
    seconds: float

    @property
    def failed(self) -> bool:
        return self.kind in FAILURES

    @property
    def last_line(self) -> str:
        """The last line of standard error: the sentence, or the exception."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        return lines[-1] if lines else ""


def prepare() -> None:
    """Import what commands import, with one thread each: forking threads away ends in deadlocks."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import importlib
    import pkgutil

    import torch

    torch.set_num_threads(1)
    import lmlab

    for result in pkgutil.walk_packages(lmlab.__path__, "lmlab."):
        # Extras that are not installed here; __main__ would start a command.
        if not result.name.endswith((".lm_eval", ".__main__")) and ".serve." not in result.name:
            importlib.import_module(result.name)
    for name in ("faiss", "bm25s", "matplotlib.pyplot", "sacrebleu"):
        try:
            importlib.import_module(name)
        except ImportError:
            continue


def in_server(serve: Callable[[Path, Any], None], folder: Path) -> list[Any]:
    """What `serve(folder, results)` puts into its queue, run in a new process without threads.

    A server that dies fails at once.
    """
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    server = context.Process(target=_serve, args=(serve, folder, results))
    server.start()
    collected: list[Any] = []
    while True:
        try:
            result = results.get(timeout=1)
        except queue.Empty:
            if server.is_alive():
                continue
            raise RuntimeError(f"the server ended with exit code {server.exitcode}") from None
        if result is ENDED:
            server.join()
            return collected
        collected.append(result)


def _serve(serve: Callable[[Path, Any], None], folder: Path, results: Any) -> None:
    serve(folder, results)
    results.put(ENDED)


def run_command(
    arguments: Sequence[str],
    *,
    folder: Path,
    stdin: str | None = None,
    memory: int = MEMORY,
    seconds: float = SECONDS,
) -> Outcome:
    """`lmlab ARGUMENTS` in a child whose working directory is `folder`."""

    def command() -> int:
        from lmlab.cli.main import main

        return main(list(arguments))

    return run_forked(command, folder=folder, stdin=stdin, memory=memory, seconds=seconds)


def run_forked(
    function: Callable[[], int],
    *,
    folder: Path,
    stdin: str | None = None,
    memory: int = MEMORY,
    seconds: float = SECONDS,
) -> Outcome:
    """A function in a child; its result is the exit code."""
    files = Path(tempfile.mkdtemp(prefix="fuzz-streams-"))
    (files / "in").write_text(stdin or "", encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _child(function, folder, files, memory, seconds)
    status = _wait(pid, seconds)
    spent = time.monotonic() - started
    out, err = (_read(files / name) for name in ("out", "err"))
    shutil.rmtree(files, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status) if status is not None else -signal.SIGKILL
    kind = "hang" if status is None or code == -signal.SIGXCPU else classify(code, err)
    return Outcome(kind=kind, code=code, out=out, err=err, seconds=spent)


def classify(code: int, err: str) -> Kind:
    """What an exit code and standard error say of a command."""
    lines = [line for line in err.splitlines() if line.strip()]
    if "Traceback (most recent call last)" in err or code == RAISED:
        return "traceback"
    if code < 0:
        return "killed"
    if code in (0, 1):  # 1: a finding of `doctor --strict`, a pipe that was closed
        return "ok"
    if code == 2 and lines and lines[-1].startswith("lmlab: "):
        return "memory" if "not enough memory" in lines[-1] else "refused"
    return "unclear"


def _child(
    function: Callable[[], int], folder: Path, files: Path, memory: int, seconds: float
) -> None:
    code = RAISED
    try:
        os.setsid()
        os.chdir(folder)
        for name, flags, descriptor in (
            ("in", os.O_RDONLY, 0),
            ("out", os.O_WRONLY | os.O_CREAT, 1),
            ("err", os.O_WRONLY | os.O_CREAT, 2),
        ):
            os.dup2(os.open(files / name, flags), descriptor)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            stream = open(descriptor, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
        _limit(memory, seconds)
        code = function()
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code if 0 <= code < 256 else RAISED)


def _limit(memory: int, seconds: float) -> None:
    """Limits of the child; the server's own address space does not count."""
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + memory, now + memory))
    processor = int(seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (processor, processor + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _wait(pid: int, seconds: float) -> int | None:
    """The status of a child; None where it had to be killed for its time."""
    handle = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        ended = bool(poll.poll(int(seconds * 1000)))
        if not ended:
            os.killpg(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        return status if ended else None
    finally:
        os.close(handle)


def _read(path: Path, most: int = 200_000) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        size = path.stat().st_size
        file.seek(max(0, size - most))
        return file.read().decode(errors="replace")
