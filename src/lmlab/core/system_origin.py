"""Where a system that is not lmlab's own comes from, as config.json records it (`plugin`).

{"package": "echo-lm", "version": "1.2"}        an installed package
{"file": "my_system.py", "sha256": "9f86…"}     a file that was given
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
VERSION = re.compile(r"[A-Za-z0-9.!+_-]{1,100}")
FILE = re.compile(r"[^/\\\x00-\x1f\x7f]{1,255}")
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class PackageOrigin:
    """An installed package, by the name and version of its distribution."""

    package: str
    version: str

    def __str__(self) -> str:
        return f"the package {self.package} {self.version}"


@dataclass(frozen=True, kw_only=True)
class FileOrigin:
    """A file that was given; its name serves messages only, and is never opened."""

    file: str
    """Its name, without a folder."""
    sha256: str

    def __str__(self) -> str:
        return f"the file {self.file}"


SystemOrigin = PackageOrigin | FileOrigin

PATTERNS = {"package": PACKAGE, "version": VERSION, "file": FILE, "sha256": SHA256}


def parse_origin(values: Any) -> SystemOrigin | None:
    """The origin that a config.json records, None for lmlab's own; a ValueError if invalid."""
    if values is None:
        return None
    if not isinstance(values, Mapping):
        raise ValueError(f"expected an object, got {type(values).__name__}")
    for name, value in values.items():
        if name not in PATTERNS or not isinstance(value, str):
            raise ValueError(f"there is no field {name!r}")
        if not PATTERNS[name].fullmatch(value):
            raise ValueError(f"{name} is invalid: {value[:60]!r}")
    if values.keys() == {"package", "version"}:
        return PackageOrigin(**values)
    if values.keys() == {"file", "sha256"}:
        return FileOrigin(**values)
    raise ValueError("expected package and version, or file and sha256")
