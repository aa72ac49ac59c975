"""Faults: a process that kills itself with SIGKILL inside its k-th write to the disk.

Nothing in lmlab knows of it: in a forked child the functions of `os` and `open` that change the
disk are replaced by ones that count, and that kill at the chosen count. A write to a file is cut in
half first, so that a file which is written in place would be seen torn.
"""

from __future__ import annotations

import builtins
import io
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHANGES = ("replace", "rename", "fsync", "mkdir", "unlink", "rmdir", "link", "symlink", "truncate")
"""Functions of `os` that change the disk, or force a change to it."""


class Fault:
    """Counts changes of the disk below a folder's parent, and kills at the `at`-th; 0 for never."""

    def __init__(self, at: int, count_file: Path) -> None:
        self.at = at
        self.count = 0
        self.count_file = count_file

    def reached(self) -> bool:
        self.count += 1
        return self.count == self.at

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def tell(self) -> None:
        """Write how many changes there were, by a descriptor of its own that is not counted."""
        handle = os.open(self.count_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(handle, str(self.count).encode())
        os.close(handle)


class _TornWriter(io.BufferedWriter):
    """A file of which the chosen write is done in half before the process is killed."""

    fault: Fault

    def write(self, data: Any) -> int:
        if self.fault.reached():
            view = memoryview(data).cast("B")
            super().write(view[: len(view) // 2])
            super().flush()
            self.fault.kill()
        return super().write(data)


def install(fault: Fault) -> None:
    """Replace what changes the disk, in this process."""
    for name in CHANGES:
        setattr(os, name, _counted(getattr(os, name), fault))
    opened, create = io.open, _counted(os.open, fault)
    plain = os.open

    def faulty_create(path: Any, flags: int, *arguments: Any, **words: Any) -> int:
        made = create if flags & os.O_CREAT else plain
        return int(made(path, flags, *arguments, **words))

    os.open = faulty_create

    def faulty_open(file: Any, mode: str = "r", *arguments: Any, **words: Any) -> Any:
        if not set(mode) & set("wax") or "+" in mode or _is_pipe(file):
            return opened(file, mode, *arguments, **words)
        opener = words.pop("opener", None)
        raw = io.FileIO(file, mode.replace("b", "").replace("t", ""), opener=opener)
        writer = _TornWriter(raw)
        writer.fault = fault
        if "b" in mode:
            return writer
        kept = {key: value for key, value in words.items() if key != "buffering"}
        return io.TextIOWrapper(writer, **kept)

    io.open = faulty_open  # type: ignore[assignment]
    builtins.open = faulty_open  # type: ignore[assignment]


def _is_pipe(file: Any) -> bool:
    return isinstance(file, int) and not stat.S_ISREG(os.fstat(file).st_mode)


def _counted(function: Callable[..., Any], fault: Fault) -> Callable[..., Any]:
    def counted(*arguments: Any, **words: Any) -> Any:
        if fault.reached():
            fault.kill()
        return function(*arguments, **words)

    return counted
