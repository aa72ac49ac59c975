"""Child processes that end with their parent, however the parent ends.

The child's standard input is a pipe whose other end the parent holds and writes lines of work to.
The kernel closes it when the parent dies, by kill -9 too, and a thread of the child reads the end
of file. That works on every system and has no race: an end of file waits for a late reader.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from queue import SimpleQueue
from typing import IO

GRACE_SECONDS = 60.0
"""How long an orphaned child may take to write its checkpoint before it is killed."""


def start_child(
    command: Sequence[str], *, environment: Mapping[str, str], errors: IO[bytes]
) -> subprocess.Popen[str]:
    """Start a command that reads its work by a `ParentPipe` and answers on standard output.

    It has a session of its own, so a Ctrl-C in the terminal reaches it through this process alone.
    """
    return subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        encoding="utf-8",
        start_new_session=True,
    )


class ParentPipe:
    """The lines that the parent writes to this process, which ends with the parent.

    If the parent ends while a line is being worked on, this process gets a SIGTERM, and is killed
    if it does not end in time.
    """

    def __init__(self) -> None:
        self._lines = SimpleQueue[str | None]()
        self._working = self._ended = False
        threading.Thread(target=self._read, name="parent-pipe", daemon=True).start()

    def __iter__(self) -> Iterator[str]:
        while (line := self._lines.get()) is not None:
            self._working = True  # before the check below, as `_read` sets and checks in turn
            if self._ended:
                return
            yield line
            self._working = False

    def _read(self) -> None:
        with open(0, encoding="utf-8", closefd=False) as pipe:
            for line in pipe:
                self._lines.put(line)
        self._ended = True
        self._lines.put(None)
        if self._working:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(GRACE_SECONDS)
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
