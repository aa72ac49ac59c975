"""The index of runs: it is quick, never wrong, and never required."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.core.locks import lock_folder
from lmlab.run_store import find_runs as finding
from lmlab.run_store.find_runs import find_runs
from lmlab.run_store.run_index import RunIndex
from lmlab.run_store.run_tags import change_tags


def names(folder: Path, index: RunIndex) -> list[str]:
    return [record.path.relative_to(folder).as_posix() for record in find_runs(folder, index=index)]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of folders that were read, and not looked up."""
    read: list[str] = []
    original = finding.read_run

    def counted(folder: Path):
        read.append(folder.name)
        return original(folder)

    monkeypatch.setattr(finding, "read_run", counted)
    return read


def test_a_second_listing_reads_no_folder_and_gives_equal_records(make_run, index, reads):
    for number in range(3):
        make_run(f"group/{number}", seed=number, off=[1, 2])
    first = find_runs(make_run.root, index=index)
    assert sorted(reads) == ["0", "1", "2"]
    reads.clear()
    assert find_runs(make_run.root, index=index) == first
    assert find_runs(make_run.root / "group", index=index) == first
    assert reads == []
    # Another folder whose name begins alike is not below it.
    make_run("group-2/x")
    assert names(make_run.root / "group", index) == ["0", "1", "2"]


def test_what_changes_is_read_again(make_run, index, reads):
    runs = [make_run(name) for name in "abcd"]
    find_runs(make_run.root, index=index)
    reads.clear()
    change_tags(runs[0], ["good"], [])
    (runs[1] / "evaluation.json").write_text("{}")
    runs[2].rename(make_run.root / "moved")
    make_run("new")
    records = {record.name: record for record in find_runs(make_run.root, index=index)}
    assert sorted(records) == ["a", "b", "d", "moved", "new"]
    assert sorted(reads) == ["a", "b", "moved", "new"]
    assert records["a"].tags == ("good",)


def test_a_run_that_is_or_may_be_written_is_read_every_time(make_run, index, reads):
    run = make_run("a")
    with lock_folder(run):
        make_run.settle(run)
        assert [record.status for record in find_runs(make_run.root, index=index)] == ["running"]
        assert [record.status for record in find_runs(make_run.root, index=index)] == ["running"]
    make_run.settle(run)
    assert [record.status for record in find_runs(make_run.root, index=index)] == ["finished"]
    assert reads == ["a", "a", "a"]


@pytest.mark.parametrize("age", [0.0, -3600.0])
def test_a_folder_that_just_changed_is_not_stored(make_run, index, reads, age: float):
    """It may change again within one tick; so may one of a file server whose clock is ahead."""
    run = make_run("a")
    then = time.time() - age
    os.utime(run, (then, then))
    find_runs(make_run.root, index=index)
    find_runs(make_run.root, index=index)
    assert reads == ["a", "a"]


def test_links_and_hidden_folders_are_not_followed_and_runs_in_runs_are_found(make_run, index):
    make_run("a")
    make_run("a/second")
    make_run("a/trainer/step-99/no")
    make_run(".hidden/no")
    outside = make_run("../outside")
    (make_run.root / "link").symlink_to(outside)
    assert names(make_run.root, index) == names(make_run.root, index) == ["a", "a/second"]


def test_names_that_are_not_unicode_are_stored(make_run, index):
    make_run(os.fsdecode(b"caf\xe9/run"))
    assert find_runs(make_run.root, index=index) == find_runs(make_run.root, index=index)


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_damaged_index_is_replaced(make_run, index, reads, content: bytes):
    make_run("a")
    index.file.parent.mkdir()
    index.file.write_bytes(content)
    assert names(make_run.root, index) == ["a"]
    names(make_run.root, index)  # stores it, if the damage was only met on writing
    reads.clear()
    assert names(make_run.root, index) == ["a"]
    assert reads == []


def test_rows_of_another_version_are_dropped(make_run, index, reads):
    make_run("a")
    find_runs(make_run.root, index=index)
    with sqlite3.connect(index.file) as database:
        database.execute("UPDATE runs SET record = '[1, 2]'")
    database.close()
    reads.clear()
    assert names(make_run.root, index) == ["a"]
    assert reads == ["a"]


def test_a_deleted_index_and_one_that_can_not_be_written_change_nothing(make_run, index, tmp_path):
    make_run("a")
    names(make_run.root, index)
    index.file.unlink()
    assert names(make_run.root, index) == ["a"]
    (tmp_path / "file").write_text("in the way")
    impossible = RunIndex(tmp_path / "file" / "runs.sqlite")
    assert names(make_run.root, impossible) == ["a"]
    link = RunIndex(tmp_path / "link.sqlite")
    link.file.symlink_to(tmp_path / "file")
    assert names(make_run.root, link) == ["a"]
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_listing_never_writes_into_the_folders(make_run, index):
    run = make_run("a")
    before = sorted(path for path in make_run.root.rglob("*"))
    time_ns = run.stat().st_mtime_ns
    find_runs(make_run.root, index=index)
    assert sorted(make_run.root.rglob("*")) == before
    assert run.stat().st_mtime_ns == time_ns


def test_an_index_that_another_process_locks_is_passed_over(make_run, index, monkeypatch):
    monkeypatch.setattr("lmlab.run_store.run_index.WAIT_SECONDS", 0.05)
    make_run("a")
    find_runs(make_run.root, index=index)
    make_run("b")
    database = sqlite3.connect(index.file)
    database.execute("BEGIN EXCLUSIVE")
    assert names(make_run.root, index) == ["a", "b"]
    database.rollback()
    database.close()
    assert names(make_run.root, index) == ["a", "b"]


def test_readers_and_writers_at_the_same_time_all_find_every_run(make_run, index):
    for number in range(20):
        make_run(f"{number:02}")
    counts: list[int] = []

    def list_often() -> None:
        for _ in range(5):
            counts.append(len(find_runs(make_run.root, index=RunIndex(index.file))))
            index.discard()

    threads = [threading.Thread(target=list_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [20] * 20


LIST_FOR_EVER = """
import sys
from pathlib import Path
from lmlab.run_store.find_runs import find_runs
from lmlab.run_store.run_index import RunIndex
index = RunIndex(Path(sys.argv[2]))
print("ready", flush=True)
while True:
    index.save({}, [record.path for record in find_runs(Path(sys.argv[1]), index=index)])
"""


def test_a_listing_killed_while_it_writes_leaves_a_usable_index(make_run, index):
    """A process stores all runs and forgets them again, over and over, until it is killed."""
    for number in range(30):
        make_run(f"{number:02}")
    draw = random.Random(0)
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", LIST_FOR_EVER, str(make_run.root), str(index.file)],
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            time.sleep(draw.uniform(0.02, 0.2))
            process.send_signal(signal.SIGKILL)
        assert len(find_runs(make_run.root, index=index)) == 30


def test_a_folder_that_does_not_exist_is_an_error(tmp_path, index):
    with pytest.raises(UserError, match="there is no folder"):
        find_runs(tmp_path / "nothing", index=index)
