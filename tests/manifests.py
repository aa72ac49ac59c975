"""Folders with manifests, changed by hand in tests."""

from __future__ import annotations

from pathlib import Path

from lmlab.core.manifest import read_manifest, write_manifest


def relist(folder: Path) -> None:
    """List a folder's files as they are now, so that what is behind the hashes is reached."""
    write_manifest(folder, [name for name in read_manifest(folder) if (folder / name).is_file()])
