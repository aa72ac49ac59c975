"""Child processes that end with their parent, however the parent ends.

The child's standard input is a pipe whose other end the parent holds and never writes to. The
kernel closes it when the parent dies, by kill -9 too, and a thread of the child reads the end of
file. That works on every system and has no race: an end of file waits for a late reader.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO

PARENT_PIPE_VARIABLE = "LMLAB_END_WITH_PARENT"
"""Set in the environment of a process whose standard input is such a pipe."""
GRACE_SECONDS = 60.0
"""How long an orphaned child may take to write its checkpoint before it is killed."""


def start_child(
    command: Sequence[str], *, environment: Mapping[str, str], output: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a command of lmlab that ends with this process, in a session of its own.

    So a Ctrl-C in the terminal reaches it through this process alone.
    """
    return subprocess.Popen(
        command,
        env={**environment, PARENT_PIPE_VARIABLE: "1"},
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def end_with_parent() -> None:
    """Watch for the parent's end in a thread, in a process started by `start_child`."""
    if os.environ.pop(PARENT_PIPE_VARIABLE, None) is not None:
        threading.Thread(target=_watch, name="parent-watch", daemon=True).start()


def _watch() -> None:
    """Ask this process to stop when the parent is gone, and kill it if it does not."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
