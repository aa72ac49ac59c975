"""Lines of standard input or a pipe, passed on as soon as they arrive."""

from __future__ import annotations

import select
from collections.abc import Iterator
from io import UnsupportedOperation
from typing import Any

from lmlab.core.errors import UserError
from lmlab.core.limits import limit, limit_exceeded_error
from lmlab.data.lines import BYTE_ORDER_MARK, ReadingReport

MAX_CHUNK_LINES = 256
"""Most lines passed on together."""
BLOCK_BYTES = 65536


def read_stdin_lines(
    stream: Any, name: str, report: ReadingReport, errors: str
) -> Iterator[list[tuple[int, str]]]:
    """Chunks of line numbers and texts of a binary stream, decoded as UTF-8.

    Never waits for more than is available: a line is passed on before the next arrives.
    """
    for raw in _raw_lines(stream, name):
        lines = []
        for line in raw:
            report.lines += 1
            report.bytes_read += len(line) + 1
            text = _decode(line, name, report.lines, errors)
            report.empty_lines += not text.strip()
            lines.append((report.lines, text))
        yield lines


def _raw_lines(stream: Any, name: str) -> Iterator[list[bytes]]:
    """Chunks of raw lines: all that are available, up to the limit."""
    partial: list[bytes] = []
    lines: list[bytes] = []
    max_bytes = limit("line")
    while block := stream.read1(BLOCK_BYTES):
        first, *others = block.split(b"\n")
        partial.append(first)
        if others:
            # Joined once per line, so that long lines take linear time.
            lines += [b"".join(partial), *others[:-1]]
            partial = [others[-1]]
        elif sum(map(len, partial)) > max_bytes:
            raise limit_exceeded_error("line", f"{name}: the bytes of a line must be")
        more = _has_more(stream)
        while len(lines) >= MAX_CHUNK_LINES or (lines and not more):
            yield lines[:MAX_CHUNK_LINES]
            lines = lines[MAX_CHUNK_LINES:]
    if any(partial):
        lines.append(b"".join(partial))
    for start in range(0, len(lines), MAX_CHUNK_LINES):
        yield lines[start : start + MAX_CHUNK_LINES]


def _has_more(stream: Any) -> bool:
    """Whether the stream can be read without blocking; true if unknown."""
    try:
        return bool(select.select([stream.fileno()], [], [], 0)[0])
    except (UnsupportedOperation, OSError, ValueError):
        return True


def _decode(line: bytes, name: str, number: int, errors: str) -> str:
    line = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
    try:
        return line.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name}, line {number}: byte 0x{line[error.start]:02x} at position "
            f"{error.start + 1} is not UTF-8; convert it, or replace bad bytes with --errors "
            "replace."
        ) from None
