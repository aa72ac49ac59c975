"""Folder locks: one writer at a time, and no lock outlives its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.core.locks import LOCK_FILE, is_locked, lock_folder

HOLD = """
import sys, time
from pathlib import Path
from lmlab.core.locks import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""
FORK = """
import os, sys, time
from pathlib import Path
from lmlab.core.locks import lock_folder
with lock_folder(Path(sys.argv[1])):
    if not os.fork():  # the child prints, so that it has left the fork by then
        print(os.getpid(), flush=True)
    time.sleep(60)
"""


@contextmanager
def running(program: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that has taken the lock, and the first line that it printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_lock_excludes_processes_and_ends_with_its_owner(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with running(HOLD, folder) as (process, line):
        assert line == "held"
        assert is_locked(folder)
        with pytest.raises(UserError, match=rf"being written .*process {process.pid}\b"):
            lock_folder(folder)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (folder / LOCK_FILE).exists()  # stale
        assert not is_locked(folder)
        with lock_folder(folder):
            assert is_locked(folder)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_forked_child_does_not_keep_lock_of_killed_parent(tmp_path: Path) -> None:
    with running(FORK, tmp_path) as (process, line):
        child = int(line)
        try:
            assert is_locked(tmp_path)
            process.send_signal(signal.SIGKILL)
            process.wait()
            os.kill(child, 0)  # the child is alive
            assert not is_locked(tmp_path)
        finally:
            os.kill(child, signal.SIGKILL)


def test_released_lock_leaves_no_files(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "new" / "run"):
        assert [path.name for path in (tmp_path / "new" / "run").iterdir()] == [LOCK_FILE]
    assert list(tmp_path.iterdir()) == []  # folders that nothing was written into are gone
    with lock_folder(tmp_path / "run"):
        (tmp_path / "run" / "config.json").write_text("{}")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.json"]


def test_adjacent_lock_does_not_create_the_folder(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "index", adjacent=True):
        assert not (tmp_path / "index").exists()
        with pytest.raises(UserError, match="being written"):
            lock_folder(tmp_path / "index", adjacent=True)
        with lock_folder(tmp_path / "other", adjacent=True):
            pass
    assert list(tmp_path.iterdir()) == []


def test_waiting_process_gets_the_released_lock(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path)
    timer = threading.Timer(0.2, lock.release)
    timer.start()
    with lock_folder(tmp_path, wait=20):
        assert is_locked(tmp_path)
    timer.join()


def test_lock_is_exclusive_among_threads(tmp_path: Path) -> None:
    inside, overlaps, entered = [0], [0], [0] * 4

    def work(number: int) -> None:
        while entered[number] < 20:
            try:
                with lock_folder(tmp_path / "run"):
                    inside[0] += 1
                    overlaps[0] += inside[0] != 1
                    time.sleep(0.0002)
                    entered[number] += 1
                    inside[0] -= 1
            except UserError:
                time.sleep(0.0002)

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert entered == [20] * 4
    assert overlaps[0] == 0
    assert not list(tmp_path.rglob(f"{LOCK_FILE}*"))


def test_folder_removed_while_it_is_created_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mkdir` meets the folder, and finds none when it looks whether that is one."""
    mkdir, calls = Path.mkdir, []

    def removed_meanwhile(path: Path, *args, **kwargs) -> None:
        calls.append(path)
        if len(calls) == 1:
            raise FileExistsError(17, "File exists", str(path))
        mkdir(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", removed_meanwhile)
    with lock_folder(tmp_path / "run"):
        assert (tmp_path / "run").is_dir()
    assert len(calls) == 2


def test_file_in_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("x")
    with pytest.raises(OSError, match="run"):
        lock_folder(tmp_path / "run")
