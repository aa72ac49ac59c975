"""Rows of JSON-lines files: objects with their file and line, read lazily."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import parse_json
from lmlab.data.lines import ReadingReport, held_lines


@dataclass(frozen=True, kw_only=True)
class JsonRow:
    """A JSON object and where it stands."""

    values: dict[str, Any]
    file: Path
    line: int

    def error(self, expected: str) -> UserError:
        """A UserError that names the file, the line and the keys there are."""
        keys = ", ".join(map(str, self.values)) or "nothing"
        return UserError(f"{self.file}, line {self.line}: expected {expected}, got {keys}.")

    def text(self, key: str, noun: str = "text") -> str:
        """The text under a key; an error if there is none."""
        value = self.values.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.error(f"a {noun} under {key!r}")
        return value


def json_rows(path: Path, noun: str) -> Iterator[JsonRow]:
    """The objects of a file, one per line; empty lines are skipped, a file without any refused."""
    if not path.is_file():
        raise UserError(f"there is no file {path}; check the path.")
    count = 0
    for line, text in held_lines(path, ReadingReport()):
        if text:
            count += 1
            yield JsonRow(values=_object(text, path, line), file=path, line=line)
    if count == 0:
        raise UserError(f"{path} holds no {noun}; expected one JSON object per line.")


def _object(text: str, file: Path, line: int) -> dict[str, Any]:
    try:
        row = parse_json(text)
    except ValueError as error:
        reason = getattr(error, "msg", error)
        raise UserError(f"{file}, line {line}: this is not JSON ({reason}).") from None
    if not isinstance(row, dict):
        raise UserError(f"{file}, line {line}: expected a JSON object, not {type(row).__name__}.")
    return row


def files_of(path: Path, suffix: str, noun: str) -> list[Path]:
    """The file itself, or all files of a folder with this suffix, sorted by name."""
    if not path.is_dir():
        return [path]
    files = sorted(path.glob(f"*{suffix}"))
    if not files:
        raise UserError(f"the folder {path} holds no {suffix} file; give files of {noun}.")
    return files
