"""Atomic writes: all or nothing, through no symbolic link, with no files left behind."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from lmlab.core.atomic_files import (
    TEMPORARY,
    advising_resume,
    disk_error,
    inner_folder,
    new_file,
    new_folder,
    new_named_file,
    no_follow,
    replaced_folder,
    write_text,
)
from lmlab.core.errors import UserError
from lmlab.core.locks import LOCK_FILE, lock_folder


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file outside of the written folder."""
    path = tmp_path / "secret"
    path.write_text("mine")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "folder"
    path.mkdir()
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_symbolic_link_at_target_is_replaced_not_followed(folder: Path, secret: Path) -> None:
    (folder / "a").symlink_to(secret)
    write_text(folder / "a", "new")
    assert not (folder / "a").is_symlink()
    assert (folder / "a").read_text() == "new"
    (folder / "b").symlink_to(secret)
    with new_named_file(folder / "b") as partial:
        partial.write_text("new")
    assert (folder / "b").read_text() == "new" and secret.read_text() == "mine"
    (folder / "step").symlink_to(secret.parent)
    with replaced_folder(folder / "step") as partial:
        write_text(partial / "a", "new")
    assert names(folder / "step") == ["a"] and secret.read_text() == "mine"


def test_temporary_names_are_unpredictable_and_exclusive(
    folder: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_file(folder / "a") as one, new_file(folder / "a") as other:
        assert one.fileno() != other.fileno() and len(names(folder)) == 2
        assert all(re.fullmatch(rf"\{TEMPORARY}[0-9a-f]{{16}}", name) for name in names(folder))
    assert names(folder) == ["a"]
    # An attacker who guesses the first name loses nothing but that name.
    guesses = iter(["0" * 16, "1" * 16])
    monkeypatch.setattr("secrets.token_hex", lambda size: next(guesses))
    (folder / f"{TEMPORARY}{'0' * 16}").symlink_to(secret)
    write_text(folder / "a", "new")
    assert secret.read_text() == "mine" and (folder / "a").read_text() == "new"


def test_symbolic_link_as_lock_file_is_not_followed(folder: Path, secret: Path) -> None:
    (folder / LOCK_FILE).symlink_to(secret)
    lock_folder(folder).release()
    assert secret.read_text() == "mine" and names(folder) == []


def test_subfolder_linked_to_the_outside_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (folder / "figures").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"figures is a symbolic link to .*elsewhere, outside of"):
        inner_folder(folder / "figures", of=folder)
    (folder / "real").mkdir()
    (folder / "inside").symlink_to(folder / "real")
    assert inner_folder(folder / "inside", of=folder).is_dir()


def test_append_does_not_follow_symbolic_links(folder: Path, secret: Path) -> None:
    (folder / "log").symlink_to(secret)
    with pytest.raises(OSError) as caught, open(folder / "log", "a", opener=no_follow):
        pass
    assert "is a symbolic link" in str(disk_error(folder / "log", caught.value))


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_error_while_writing_keeps_the_old_content(
    folder: Path, failure: type[BaseException]
) -> None:
    write_text(folder / "a", "old")
    with suppress(failure), new_file(folder / "a") as file:
        file.write(b"half")
        raise failure
    with suppress(failure), new_folder(folder / "new") as partial:
        write_text(partial / "a", "half")
        raise failure
    assert names(folder) == ["a"] and (folder / "a").read_text() == "old"


WRITERS = """
import sys, time
from pathlib import Path
from lmlab.core.atomic_files import new_file, new_folder
folder = Path(sys.argv[1])
with new_file(folder / "a") as file, new_folder(folder / "b") as partial:
    (partial / "part").write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


def test_only_temporary_files_of_dead_processes_are_removed(folder: Path) -> None:
    command = [sys.executable, "-c", WRITERS, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        write_text(folder / "c", "ours")
        assert len([name for name in names(folder) if name.startswith(TEMPORARY)]) == 2
        process.send_signal(signal.SIGKILL)
    write_text(folder / "c", "ours again")
    assert [name for name in names(folder) if not name.startswith(LOCK_FILE)] == ["c"]


def test_without_locks_only_old_temporary_files_are_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(descriptor: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("lmlab.core.atomic_files.lock_descriptor", unsupported)
    new, old = (folder / f"{TEMPORARY}{digit * 16}" for digit in "ab")
    for path in (new, old):
        path.write_text("half")
    os.utime(old, (time.time() - 100_000,) * 2)
    write_text(folder / "c", "ours")
    assert names(folder) == sorted([new.name, "c"])


def test_foreign_files_are_not_removed(folder: Path) -> None:
    for name in (".writing-notes.txt", ".writing-", f".writing-{'x' * 16}"):
        (folder / name).write_text("somebody's")
    write_text(folder / "c", "ours")
    assert len(names(folder)) == 4


def test_disk_error_advises_resume_only_where_available(folder: Path) -> None:
    full = OSError(errno.ENOSPC, "full")
    assert str(disk_error(folder, full)).endswith("free some space and try again.")
    with advising_resume():
        assert "--resume" in str(disk_error(folder, full))
    assert "--resume" not in str(disk_error(folder, full))


def test_error_in_temporary_folder_names_the_final_one(folder: Path) -> None:
    with (
        pytest.raises(UserError, match=r"folder/new/no/file|no folder .*new/no"),
        new_folder(folder / "new") as partial,
    ):
        write_text(partial / "no" / "file", "")
