"""Manifests: any change of a listed file is noticed, and a kill at any moment leaves none."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.manifests import relist

from lmlab.core.errors import UserError
from lmlab.core.manifest import (
    MANIFEST,
    DamageError,
    check_files,
    read_manifest,
    set_verification,
    verification,
    verify_files,
    write_files,
    write_manifest,
)

CONTENTS = {"config.json": b"{}", "memory/words.gz": b"\x1f\x8b", "weights": bytes(range(256))}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path / "run", CONTENTS)
    return tmp_path / "run"


def test_it_holds_the_sha256_of_each_file(folder: Path) -> None:
    told = json.loads((folder / MANIFEST).read_text())
    expected = {name: [hashlib.sha256(each).hexdigest()] for name, each in CONTENTS.items()}
    assert told == {"format": 1, "files": expected}
    check_files(folder, parts=CONTENTS)


def test_every_flipped_bit_is_noticed_and_named(folder: Path) -> None:
    draw = Random(0)
    for _ in range(200):
        name = draw.choice(list(CONTENTS))
        changed = bytearray(CONTENTS[name])
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        (folder / name).write_bytes(changed)
        with pytest.raises(DamageError, match=f"{name} is not what was written"):
            check_files(folder)
        (folder / name).write_bytes(CONTENTS[name])
    check_files(folder)


def test_missing_unlisted_and_extra_files(folder: Path) -> None:
    (folder / "metrics.jsonl").write_text("extra")
    check_files(folder, parts=CONTENTS)
    with pytest.raises(DamageError, match=r"metrics.jsonl is not listed in manifest.json"):
        check_files(folder, parts=["metrics.jsonl"])
    with pytest.raises(DamageError, match=r"metrics.jsonl is not listed in manifest.json"):
        check_files(folder, ["metrics.jsonl"])
    (folder / "weights").unlink()
    check_files(folder, skip={"weights"})
    check_files(folder, ["config.json"])
    with pytest.raises(DamageError, match="weights is missing"):
        check_files(folder)
    relist(folder)
    check_files(folder, parts=CONTENTS)
    (folder / MANIFEST).unlink()
    with pytest.raises(DamageError, match=r"manifest.json is missing"):
        check_files(folder)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "damaged"),
        ("[" * 100_000, "damaged"),
        ("[]", "damaged"),
        ("{}", "damaged"),
        ('{"format": 2, "files": {}}', "later lmlab"),
        ('{"format": 1, "files": []}', "damaged"),
        ('{"format": 1, "files": {"config.json": "00"}}', "damaged"),
        ('{"format": 1, "files": {"config.json": []}}', "damaged"),
        ('{"format": 1, "files": {"config.json": [5]}}', "damaged"),
        ('{"format": 1, "files": {"../x": ["00"]}}', "damaged"),
        ('{"format": 1, "files": {"/etc/passwd": ["00"]}}', "damaged"),
        ('{"format": 1, "files": {"": ["00"]}}', "damaged"),
        ('{"format": 1, "files": {}}', "config.json is not listed"),
    ],
)
def test_a_damaged_manifest(folder: Path, text: str, says: str) -> None:
    (folder / MANIFEST).write_text(text)
    with pytest.raises(DamageError, match=says):
        check_files(folder, parts=CONTENTS)


def test_verification_can_be_left_out(folder: Path) -> None:
    (folder / "weights").write_bytes(b"other")
    sentence = (
        rf"{folder} is damaged \(weights is not what was written\); restore it, or .*verify\."
    )
    with pytest.raises(UserError, match=sentence):
        verify_files(folder, advice="restore it")
    with verification(False):
        verify_files(folder, advice="restore it")
        with verification(True):
            verify_files(folder, advice="restore it")  # the outer word counts
    set_verification(False)
    try:
        verify_files(folder, advice="restore it")
    finally:
        set_verification(True)
    with pytest.raises(UserError):
        verify_files(folder, advice="restore it")


class Killed(BaseException):
    """The process is gone."""


def kill_at(number: int, patch: pytest.MonkeyPatch) -> list[str]:
    """Be killed just before the change of the disk with this number; the changes made."""
    made: list[str] = []

    def counted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **words: Any) -> Any:
            if len(made) >= number:
                raise Killed
            made.append(name)
            return original(*args, **words)

        return call

    for name in ("replace", "rename", "mkdir", "unlink"):
        patch.setattr(os, name, counted(name, getattr(os, name)))
    patch.setattr(os, "fsync", counted("fsync", lambda handle: None))  # slow, and no power is cut
    return made


NEW = {"weights": b"better", "memory/more.gz": b"new", "config.json": b'{"a": 1}'}


def test_a_folder_verifies_after_a_kill_at_any_moment(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        made = kill_at(10**9, patch)
        write_files(tmp_path / "count", CONTENTS)
        write_files(tmp_path / "count", NEW)
        changes = len(made)
    assert changes > 20
    seen = set()
    for number in range(changes):
        folder = tmp_path / str(number)
        with pytest.MonkeyPatch.context() as patch, suppress(Killed):
            kill_at(number, patch)
            write_files(folder, CONTENTS)
            write_files(folder, NEW)
            pytest.fail("nothing was killed")
        if (folder / MANIFEST).exists():
            check_files(folder, parts=[*CONTENTS, *NEW])
            seen.add((folder / "weights").exists() and (folder / "weights").read_bytes())
        else:
            assert not any((folder / name).exists() for name in CONTENTS)
        write_files(folder, CONTENTS)
        write_files(folder, NEW)
        assert all(len(states) == 1 for states in read_manifest(folder).values())
        assert (folder / MANIFEST).read_bytes() == (tmp_path / "count" / MANIFEST).read_bytes()
        assert not list(folder.rglob(".writing-*"))
    assert seen == {False, CONTENTS["weights"], NEW["weights"]}


def test_what_is_as_it_should_be_is_not_written_again(folder: Path) -> None:
    before = {path: path.stat().st_ino for path in folder.rglob("*")}
    write_files(folder, CONTENTS)
    assert {path: path.stat().st_ino for path in folder.rglob("*")} == before


def test_a_new_list_forgets_what_is_of_no_use_any_more(folder: Path) -> None:
    write_files(folder, {"config.json": b"[]"}, fresh=True)
    assert list(read_manifest(folder)) == ["config.json"]


def test_a_lost_manifest_lists_what_there_is_when_the_next_file_is_written(folder: Path) -> None:
    (folder / MANIFEST).unlink()
    write_files(folder, {"weights": b"new"}, parts=CONTENTS)
    assert sorted(read_manifest(folder)) == sorted(CONTENTS)
    check_files(folder)


def test_damage_of_another_file_is_not_blessed(folder: Path) -> None:
    (folder / "config.json").write_bytes(b"damaged")
    write_files(folder, {"weights": b"new"}, parts=CONTENTS)
    with pytest.raises(DamageError, match=r"config.json is not what was written"):
        check_files(folder)
    write_manifest(folder, CONTENTS)
    check_files(folder)
