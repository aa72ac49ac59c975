"""Division of a text file into chunks at line ends, in one pass and constant memory.

The chunks depend on the file and the chunk size alone. The same pass hashes the file and checks its
encoding and the length of its lines, so that hours of work do not end at a bad byte.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, NamedTuple

from lmlab.core.errors import UserError
from lmlab.core.limits import limit, limit_exceeded_error
from lmlab.data.lines import Errors, bounded_lines

BLOCK_BYTES = 1 << 20


class Chunk(NamedTuple):
    """Whole lines of a file: its bytes [start, end)."""

    start: int
    end: int
    first_line: int
    """Number of the first line, from 1."""


@dataclass(frozen=True, kw_only=True)
class ChunkPlan:
    """The chunks of a file, and the hash of the content that they divide."""

    chunks: tuple[Chunk, ...]
    lines: int
    sha256: str


def plan_chunks(file: IO[bytes], name: str, *, chunk_bytes: int, errors: Errors) -> ChunkPlan:
    """Divide a file into chunks that end at the first line end at or after `chunk_bytes`.

    Raises a UserError that names the line for one that is too long or, if `errors` is strict, not
    UTF-8; and for a file without text.
    """
    if chunk_bytes < 1:
        raise UserError(f"chunk_bytes must be at least 1, got {chunk_bytes}.")
    chunks, start, first_line = list[Chunk](), 0, 1
    digest, has_text = hashlib.sha256(), False
    checks = _LineChecks(name, errors)
    position = lines = 0
    # A block is no longer than a line may be, so that only lines across blocks can be too long.
    while block := file.read(min(BLOCK_BYTES, limit("line"))):
        digest.update(block)
        checks.check(block, lines)
        has_text = has_text or bool(block.strip())
        counted = 0
        while (cut := block.find(b"\n", max(counted, start + chunk_bytes - 1 - position))) >= 0:
            lines += block.count(b"\n", counted, cut + 1)
            counted = cut + 1
            chunks.append(Chunk(start, position + counted, first_line))
            start, first_line = position + counted, lines + 1
        lines += block.count(b"\n", counted)
        position += len(block)
    checks.finish(lines)
    if not has_text:
        raise UserError(f"{name} holds no text; give at least one line.")
    if start < position:
        chunks.append(Chunk(start, position, first_line))
    return ChunkPlan(chunks=tuple(chunks), lines=lines + checks.unended, sha256=digest.hexdigest())


class _LineChecks:
    """Checks of the lines of a file that arrives in blocks."""

    def __init__(self, name: str, errors: Errors) -> None:
        self.name = name
        self.decoder = codecs.getincrementaldecoder("utf-8")() if errors == "strict" else None
        self.open_bytes = 0
        """Bytes so far of the line that the last block did not end."""

    @property
    def unended(self) -> bool:
        """Whether the last line has no line end."""
        return self.open_bytes > 0

    def check(self, block: bytes, lines: int) -> None:
        """Check a block before which `lines` lines ended."""
        end = block.find(b"\n")
        if self.open_bytes + (len(block) if end < 0 else end + 1) > limit("line"):
            subject = f"{self.name}, line {lines + 1}: the bytes of a line must be"
            raise limit_exceeded_error("line", subject)
        last = block.rfind(b"\n")
        self.open_bytes = self.open_bytes + len(block) if last < 0 else len(block) - last - 1
        self._decode(block, lines)

    def finish(self, lines: int) -> None:
        """Check that the file does not end amid a character."""
        self._decode(b"", lines, final=True)

    def _decode(self, block: bytes, lines: int, *, final: bool = False) -> None:
        if self.decoder is None:
            return
        pending = len(self.decoder.getstate()[0])
        try:
            self.decoder.decode(block, final)
        except UnicodeDecodeError as error:
            line = lines + block.count(b"\n", 0, max(0, error.start - pending)) + 1
            raise UserError(
                f"{self.name}, line {line}: byte 0x{error.object[error.start]:02x} is not UTF-8; "
                "convert the file to UTF-8, or replace bad bytes with --errors replace."
            ) from None


def chunk_lines(file: IO[bytes], chunk: Chunk, name: str) -> Iterator[tuple[int, bytes]]:
    """The numbered lines of a chunk, one at a time."""
    file.seek(chunk.start)
    position = chunk.start
    lines = bounded_lines(file, name)
    for number, line in enumerate(lines, chunk.first_line):
        yield number, line
        position += len(line)
        if position >= chunk.end:
            return
