"""Manifests: the SHA-256 of every file that a folder consists of, so that damage is detected.

    {"format": 1, "files": {"config.json": ["9f86…"], "model.safetensors": ["2c26…"]}}

A run, an index and a checkpoint have one. It covers what loading reads, not metrics, figures or
reports, and is written last. While a file is replaced it lists two states, the hash before (null
where there was no file) and the hash after, so that a folder verifies after a kill at any moment.
It detects damage, not forgery: whoever can change a file can change the manifest as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path, PurePosixPath
from typing import Any

from lmlab.core.atomic_files import inner_folder, remove_leftovers, write_bytes, write_json
from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import read_json_object

MANIFEST = "manifest.json"
FORMAT = 1
"""Version of the file's form; a larger one was written by a later lmlab."""
_VERIFY: ContextVar[bool] = ContextVar("verify", default=True)

States = tuple[str | None, ...]
"""Possible states of a file: hashes of its content, None for no file."""


class DamageError(ValueError):
    """A file differs from what was written; the message names it, without a full stop."""


def set_verification(on: bool) -> bool:
    """Verify folders on load from now on, or not (`--no-verify`)."""
    _VERIFY.set(on)
    return on


def verifies() -> bool:
    """Whether folders are verified on load."""
    return _VERIFY.get()


@contextmanager
def verification(on: bool) -> Iterator[None]:
    """Verify what is loaded in this block, or not; what is switched off already stays off."""
    token = _VERIFY.set(on and _VERIFY.get())
    try:
        yield
    finally:
        _VERIFY.reset(token)


def hash_file(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(folder: Path) -> dict[str, States]:
    """The possible states of each file; raises a DamageError without a valid manifest."""
    try:
        content = read_json_object(folder / MANIFEST)
    except FileNotFoundError:
        raise DamageError(f"{MANIFEST} is missing") from None
    except (OSError, ValueError, UserError) as error:
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise DamageError(f"{MANIFEST} is damaged: {reason}") from None
    if isinstance(content.get("format"), int) and content["format"] > FORMAT:
        raise DamageError(f"{MANIFEST} was written by a later lmlab, so upgrade lmlab")
    files = content.get("files")
    if not isinstance(files, dict) or not all(map(_is_entry, files.items())):
        raise DamageError(f"{MANIFEST} is damaged: it does not list files and their hashes")
    return {name: tuple(states) for name, states in files.items()}


def _is_entry(entry: tuple[str, Any]) -> bool:
    name, states = entry
    path = PurePosixPath(name)
    inside = bool(name) and not path.is_absolute() and ".." not in path.parts and "\\" not in name
    return (
        inside
        and isinstance(states, list)
        and bool(states)
        and all(state is None or isinstance(state, str) for state in states)
    )


def check_files(
    folder: Path,
    names: Iterable[str] | None = None,
    *,
    parts: Iterable[str] = (),
    skip: Container[str] = (),
) -> None:
    """Raise a DamageError if a file differs from the manifest: any of them, or of `names`.

    `parts` are names that loading reads; one that exists must be listed. Others are ignored, and so
    are those of `skip`.
    """
    listed = read_manifest(folder)
    names = None if names is None else list(names)
    existing = (name for name in parts if name not in skip and (folder / name).exists())
    for name in (*(names or ()), *existing):
        if name not in listed:
            raise DamageError(f"{name} is not listed in {MANIFEST}")
    for name in listed if names is None else names:
        if name in skip:
            continue
        state = _state(folder / name)
        if state not in listed[name]:
            raise DamageError(
                f"{name} is missing" if state is None else f"{name} is not what was written"
            )


def verify_files(
    folder: Path,
    names: Iterable[str] | None = None,
    *,
    parts: Iterable[str] = (),
    skip: Container[str] = (),
    advice: str,
) -> None:
    """`check_files` with a UserError that ends in `advice`; does nothing under `--no-verify`."""
    if not verifies():
        return
    try:
        check_files(folder, names, parts=parts, skip=skip)
    except DamageError as error:
        raise UserError(
            f"{folder} is damaged ({error}); {advice}, or use it as it is with --no-verify."
        ) from error


def write_manifest(folder: Path, names: Iterable[str]) -> None:
    """List files of a folder as they are now."""
    _write(folder, {name: (hash_file(folder / name),) for name in names})


def write_files(
    folder: Path, contents: Mapping[str, bytes], *, parts: Iterable[str] = (), fresh: bool = False
) -> None:
    """Write files in this order, and list them; after a kill at any moment the folder verifies.

    `parts` are names that loading reads: those that exist are listed too where the manifest is
    lost. `fresh` begins a new list.
    """
    listed = {} if fresh else _listed_or_hashed(folder, parts)
    for subfolder in dict.fromkeys([folder, *((folder / name).parent for name in contents)]):
        remove_leftovers(inner_folder(subfolder, of=folder))
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    changed = [
        name
        for name, new_hash in hashes.items()
        if listed.get(name) != (new_hash,) or _state(folder / name) != new_hash
    ]
    resolved = {name: _resolve_state(folder / name, states) for name, states in listed.items()}
    if not changed and resolved == listed:
        return
    before = {name: resolved.get(name) or (_state(folder / name),) for name in changed}
    _write(folder, {**resolved, **{name: _union(before[name], hashes[name]) for name in changed}})
    for name in changed:
        write_bytes(folder / name, contents[name])
    _write(folder, {**resolved, **{name: (hashes[name],) for name in changed}})


def _listed_or_hashed(folder: Path, parts: Iterable[str]) -> dict[str, States]:
    try:
        return read_manifest(folder)
    except DamageError:
        return {name: (hash_file(folder / name),) for name in parts if (folder / name).is_file()}


def _resolve_state(path: Path, states: States) -> States:
    """The current state of a file among several possible ones; all of them if it is none."""
    if len(states) == 1:
        return states
    state = _state(path)
    return (state,) if state in states else states


def _union(before: States, new_hash: str) -> States:
    return (*(state for state in before if state != new_hash), new_hash)


def _state(path: Path) -> str | None:
    """The hash of a file, None if there is none; raises a DamageError if it can't be read."""
    try:
        return hash_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamageError(f"{path.name} can't be read: {error.strerror or error}") from error


def _write(folder: Path, files: Mapping[str, States]) -> None:
    # A file that is known to be absent is not part of the folder.
    listed = {name: list(files[name]) for name in sorted(files) if files[name] != (None,)}
    write_json(folder / MANIFEST, {"format": FORMAT, "files": listed})
