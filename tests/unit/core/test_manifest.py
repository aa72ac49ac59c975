"""Manifests: every change of a listed file is detected; a kill at any time leaves no damage."""

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


def test_manifest_holds_the_sha256_of_each_file(folder: Path) -> None:
    output = json.loads((folder / MANIFEST).read_text())
    expected = {name: [hashlib.sha256(content).hexdigest()] for name, content in CONTENTS.items()}
    assert output == {"format": 1, "files": expected}
    check_files(folder, parts=CONTENTS)


def test_every_bit_flip_is_detected(folder: Path) -> None:
    random = Random(0)
    for _ in range(200):
        name = random.choice(list(CONTENTS))
        changed = bytearray(CONTENTS[name])
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
        (folder / name).write_bytes(changed)
        with pytest.raises(DamageError, match=f"{name} is not what was written"):
            check_files(folder)
        (folder / name).write_bytes(CONTENTS[name])
    check_files(folder)


def test_missing_and_unlisted_files_are_damage_extra_are_not(folder: Path) -> None:
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
    ("text", "message"),
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
def test_damaged_manifest_is_reported(folder: Path, text: str, message: str) -> None:
    (folder / MANIFEST).write_text(text)
    with pytest.raises(DamageError, match=message):
        check_files(folder, parts=CONTENTS)


def test_verification_can_be_disabled(folder: Path) -> None:
    (folder / "weights").write_bytes(b"other")
    sentence = (
        rf"{folder} is damaged \(weights is not what was written\); restore it, or .*verify\."
    )
    with pytest.raises(UserError, match=sentence):
        verify_files(folder, advice="restore it")
    with verification(False):
        verify_files(folder, advice="restore it")
        with verification(True):
            verify_files(folder, advice="restore it")  # the outer context decides
    set_verification(False)
    try:
        verify_files(folder, advice="restore it")
    finally:
        set_verification(True)
    with pytest.raises(UserError):
        verify_files(folder, advice="restore it")


class Killed(BaseException):
    """Simulates a killed process."""


def kill_at(number: int, patch: pytest.MonkeyPatch) -> list[str]:
    """Raise `Killed` before disk change `number`; return the list of changes made."""
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
    patch.setattr(os, "fsync", counted("fsync", lambda handle: None))  # slow, and not needed here
    return made


NEW = {"weights": b"better", "memory/more.gz": b"new", "config.json": b'{"a": 1}'}


def test_folder_verifies_after_a_kill_at_any_moment(tmp_path: Path) -> None:
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


def test_unchanged_files_are_not_rewritten(folder: Path) -> None:
    before = {path: path.stat().st_ino for path in folder.rglob("*")}
    write_files(folder, CONTENTS)
    assert {path: path.stat().st_ino for path in folder.rglob("*")} == before


def test_fresh_write_drops_old_entries(folder: Path) -> None:
    write_files(folder, {"config.json": b"[]"}, fresh=True)
    assert list(read_manifest(folder)) == ["config.json"]


def test_lost_manifest_is_rebuilt_at_the_next_write(folder: Path) -> None:
    (folder / MANIFEST).unlink()
    write_files(folder, {"weights": b"new"}, parts=CONTENTS)
    assert sorted(read_manifest(folder)) == sorted(CONTENTS)
    check_files(folder)


def test_writing_does_not_accept_damage_of_other_files(folder: Path) -> None:
    (folder / "config.json").write_bytes(b"damaged")
    write_files(folder, {"weights": b"new"}, parts=CONTENTS)
    with pytest.raises(DamageError, match=r"config.json is not what was written"):
        check_files(folder)
    write_manifest(folder, CONTENTS)
    check_files(folder)
