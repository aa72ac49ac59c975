"""Child processes end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PARENT = """
import os, sys, time
from pathlib import Path
from lmlab.core.child_processes import start_child
folder = Path(sys.argv[1])
with (folder / "log").open("wb") as log:
    job = start_child(
        [sys.executable, "-c", sys.argv[2], str(folder)], environment=os.environ, errors=log
    )
print("work", file=job.stdin, flush=True)
print(job.pid, flush=True)
time.sleep(60)
"""
CHILD = """
import signal, sys, time
from pathlib import Path
from lmlab.core.child_processes import ParentPipe
folder, asked = Path(sys.argv[1]), []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
for line in ParentPipe():
    assert line == "work\\n"
    (folder / "begun").touch()
    while not asked:
        time.sleep(0.01)
    (folder / "checkpoint").touch()
"""


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.skipif(os.name == "nt", reason="asks by signals that Windows does not have")
def test_child_writes_checkpoint_when_parent_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path), CHILD]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        wait_for(tmp_path / "begun")
        time.sleep(0.1)
        os.kill(child, 0)  # alive as long as its parent is
        assert not (tmp_path / "checkpoint").exists()
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        wait_for(tmp_path / "checkpoint")
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
        if not (tmp_path / "checkpoint").exists():
            os.kill(child, signal.SIGKILL)
