"""Column store: columns are stored completely or not at all."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lmlab.core.cache_folder import default_cache
from lmlab.core.errors import UserError
from lmlab.data import column_store
from lmlab.data.column_store import ColumnWriter, cache_key, clear_leftovers, open_columns
from lmlab.data.lines import ReadingReport

CHUNKS = [
    {"tokens": np.array([1, 2, 3], dtype=np.uint16), "ends": np.array([3], dtype=np.int64)},
    {"tokens": np.array([4], dtype=np.uint16), "ends": np.array([4], dtype=np.int64)},
]


def write_columns(path: Path) -> None:
    with ColumnWriter(path) as writer:
        for chunk in CHUNKS:
            writer.append(chunk)
        writer.finish(ReadingReport(examples=2))


def test_chunks_are_stored_as_one_column(tmp_path: Path) -> None:
    write_columns(tmp_path / "key")
    stored = open_columns(tmp_path / "key")
    assert stored is not None
    assert stored.columns["tokens"].tolist() == [1, 2, 3, 4]
    assert stored.columns["tokens"].dtype == np.uint16
    assert stored.columns["ends"].tolist() == [3, 4]
    assert stored.report.examples == 2
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_stored_columns_are_read_only(tmp_path: Path) -> None:
    write_columns(tmp_path / "key")
    stored = open_columns(tmp_path / "key")
    assert stored is not None
    with pytest.raises(ValueError, match="read-only"):
        stored.columns["tokens"][0] = 9


def test_interrupted_build_leaves_no_files(tmp_path: Path) -> None:
    def interrupted() -> None:
        with ColumnWriter(tmp_path / "key") as writer:
            writer.append(CHUNKS[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    assert open_columns(tmp_path / "key") is None


def test_killed_build_leaves_no_readable_columns(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys, numpy, pathlib\n"
        "from lmlab.data.column_store import ColumnWriter\n"
        "with ColumnWriter(pathlib.Path(sys.argv[1])) as writer:\n"
        "    writer.append({'tokens': numpy.arange(100_000)})\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    folder = tmp_path / "key"
    done = subprocess.run([sys.executable, "-c", program, str(folder)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [path.name.split("-")[0] for path in tmp_path.iterdir()] == ["building"]
    assert open_columns(folder) is None
    write_columns(folder)
    assert open_columns(folder) is not None


@pytest.mark.parametrize("damage", ["cut", "gone", "meta", "format"])
def test_damaged_columns_are_rejected_and_rebuilt(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "key"
    write_columns(folder)
    if damage == "cut":
        os.truncate(folder / "tokens.bin", 5)
    elif damage == "gone":
        (folder / "ends.bin").unlink()
    elif damage == "meta":
        (folder / "meta.json").write_text('{"format": 1, "col')
    else:
        meta = json.loads((folder / "meta.json").read_text())
        (folder / "meta.json").write_text(json.dumps(meta | {"format": 0}))
    assert open_columns(folder) is None
    write_columns(folder)
    assert open_columns(folder) is not None


def test_concurrent_build_by_another_process_wins(tmp_path: Path) -> None:
    folder = tmp_path / "key"
    with ColumnWriter(folder) as slower:
        slower.append(CHUNKS[0])
        write_columns(folder)
        slower.finish(ReadingReport())
    stored = open_columns(folder)
    assert stored is not None
    assert stored.columns["tokens"].tolist() == [1, 2, 3, 4]
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_leftovers_of_killed_builds_are_removed_after_a_day(tmp_path: Path) -> None:
    old, fresh = tmp_path / "building-old", tmp_path / "building-fresh"
    for folder in (old, fresh):
        folder.mkdir()
        (folder / "tokens.bin").write_bytes(b"half")
    os.utime(old, (0, 0))
    clear_leftovers(tmp_path)
    assert not old.exists()
    assert fresh.exists()


def test_full_disk_is_reported_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(column_store.os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device; set LMLAB_CACHE"):
        write_columns(tmp_path / "key")
    assert list(tmp_path.iterdir()) == []


def test_cache_path_that_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the cache of tokenised text"):
        write_columns(tmp_path / "file" / "key")


def test_cache_location_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMLAB_CACHE", str(tmp_path))
    assert default_cache() == tmp_path
    monkeypatch.delenv("LMLAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "lmlab"


def test_cache_key_depends_on_its_parts_only() -> None:
    assert cache_key(a=1, b="x") == cache_key(b="x", a=1) != cache_key(a=2, b="x")


@pytest.mark.parametrize("name", ["tokens.bin", "ends.bin", "meta.json"])
def test_any_changed_byte_invalidates_the_columns(tmp_path: Path, name: str) -> None:
    """Flip a bit in each byte in turn; damaged columns are never opened."""
    write_columns(tmp_path / "key")
    file = tmp_path / "key" / name
    content = file.read_bytes()
    for index in range(len(content)):
        file.write_bytes(
            content[:index] + bytes([content[index] ^ (1 << index % 8)]) + content[index + 1 :]
        )
        stored = open_columns(tmp_path / "key")
        assert stored is None, (name, index)
    file.write_bytes(content)
    assert open_columns(tmp_path / "key") is not None
