"""Line reader of text files: UTF-8 validation, gzip, length limit; report of every irregularity."""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, BinaryIO, Literal, cast

from lmlab.core.errors import UserError
from lmlab.core.limits import limit, limit_exceeded_error

Errors = Literal["strict", "replace"]
"""Error handling for a bad byte or row: raise with its location, or replace (skip) and count."""

LONG_LINE = 100_000
"""Lines of more characters are counted as long, but still read."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(kw_only=True)
class ReadingReport:
    """Counts of a pass over a corpus, filled in while reading."""

    files: int = 0
    """Files opened."""
    lines: int = 0
    """Lines read, empty ones too."""
    examples: int = 0
    """Examples yielded."""
    empty_lines: int = 0
    """Lines with nothing but white space: skipped."""
    empty_rows: int = 0
    """Rows with an empty text, pairs with an empty side: skipped."""
    long_lines: int = 0
    """Lines of more than `LONG_LINE` characters: kept."""
    crlf_lines: int = 0
    """Lines with Windows line ends: read like the others."""
    bom_files: int = 0
    """Files with a byte order mark, which is dropped."""
    replaced_bytes: int = 0
    """Bytes that are not UTF-8, replaced by U+FFFD (only with errors="replace")."""
    bad_rows: int = 0
    """Malformed rows: skipped (only with errors="replace")."""
    uneven_pairs: int = 0
    """Pairs beyond the maximum length ratio: dropped (only with that filter)."""
    bytes_read: int = field(default=0, repr=False)
    """Bytes of text read so far, for the progress bar."""

    def summary(self) -> str:
        """One-line summary: sizes, and the irregularities that occurred."""
        parts = [f"{self.examples:,} examples", f"{self.lines:,} lines", f"{self.files:,} files"]
        return ", ".join(filter(None, [*parts, self.oddities()]))

    def oddities(self) -> str:
        """The irregularities that occurred, with their counts."""
        oddities = {
            "empty lines skipped": self.empty_lines,
            **self._loss_counts(),
            f"lines longer than {LONG_LINE:,} characters": self.long_lines,
            "lines with Windows endings": self.crlf_lines,
            "files with a byte order mark": self.bom_files,
            "pairs of too uneven lengths dropped": self.uneven_pairs,
        }
        return ", ".join(_format_counts(oddities))

    def add(self, other: ReadingReport) -> None:
        """Add the counts of another pass."""
        for spec in fields(self):
            setattr(self, spec.name, getattr(self, spec.name) + getattr(other, spec.name))

    def losses(self) -> str:
        """Counts of input that was dropped or altered."""
        return ", ".join(_format_counts(self._loss_counts()))

    def _loss_counts(self) -> dict[str, int]:
        return {
            "rows with an empty text or side skipped": self.empty_rows,
            "bad rows skipped": self.bad_rows,
            "bad bytes replaced": self.replaced_bytes,
        }


def _format_counts(counts: Mapping[str, int]) -> list[str]:
    return [f"{count:,} {label}" for label, count in counts.items() if count]


def check_errors(errors: str) -> Errors:
    """Validate an error-handling mode; raises an error that names the two allowed."""
    if errors not in ("strict", "replace"):
        raise UserError(f"errors must be 'strict' or 'replace', got {errors!r}.")
    return cast(Errors, errors)


def numbered_lines(
    path: Path, report: ReadingReport, errors: Errors = "strict", *, strip: str | None = None
) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of each line of a file, stripped.

    Lines end at line feeds only, so that numbers agree with an editor's. Empty lines are yielded as
    "" and counted; one line at a time is held in memory. `strip` are the characters stripped at
    both ends; all white space by default.
    """
    report.files += 1
    yield from decoded_lines(_raw_lines(path), path, report, errors, strip=strip)


def decoded_lines(
    lines: Iterable[tuple[int, bytes]],
    name: Path | str,
    report: ReadingReport,
    errors: Errors = "strict",
    *,
    strip: str | None = None,
) -> Iterator[tuple[int, str]]:
    """The same of numbered lines of bytes, of a file of that `name`."""
    for number, raw in lines:
        report.lines += 1
        report.bytes_read += len(raw)
        report.crlf_lines += raw.endswith(b"\r\n")
        if number == 1 and raw.startswith(BYTE_ORDER_MARK):
            report.bom_files += 1
            raw = raw[len(BYTE_ORDER_MARK) :]
        text = _decode(raw, name, number, report, errors).strip(strip)
        report.empty_lines += not text.strip()
        report.long_lines += len(text) > LONG_LINE
        yield number, text


def held_lines(
    path: Path, report: ReadingReport, errors: Errors = "strict"
) -> Iterator[tuple[int, str]]:
    """`numbered_lines` for files held in memory: gzip output is bounded by the limit `unpacked`."""
    before = report.bytes_read
    max_bytes = limit("unpacked") if path.is_file() and is_gzip(path) else None
    for line in numbered_lines(path, report, errors):
        if max_bytes is not None and report.bytes_read - before > max_bytes:
            raise limit_exceeded_error("unpacked", f"the unpacked bytes of {path} must be")
        yield line


def is_gzip(path: Path) -> bool:
    """Whether the file starts with gzip's magic bytes, whatever its name."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with _open_bytes(path) as file:
            yield from enumerate(bounded_lines(file, str(path)), 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"the gzip file {path} is damaged or cut short ({error}); fetch or pack it again."
        ) from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}.") from error


def bounded_lines(file: IO[bytes], name: str) -> Iterator[bytes]:
    """Lines of a binary file; a UserError if one is longer than the limit `line`.

    So a gzip bomb that unpacks to a single line of gigabytes does not fill the memory.
    """
    max_bytes = limit("line")
    for number in itertools.count(1):
        line = file.readline(max_bytes + 1)
        if not line:
            return
        if len(line) > max_bytes:
            raise limit_exceeded_error(
                "line", f"{name}, line {number}: the bytes of a line must be"
            )
        yield line


def _open_bytes(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if is_gzip(path) else path.open("rb")


def _decode(
    raw: bytes, name: Path | str, number: int, report: ReadingReport, errors: Errors
) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if errors == "strict":
            raise UserError(
                f"{name}, line {number}: byte 0x{raw[error.start]:02x} at position "
                f"{error.start + 1} is not UTF-8{_hint(raw)}; convert the file to UTF-8, or "
                "replace bad bytes with --errors replace."
            ) from None
    text = raw.decode("utf-8", "replace")
    # Count the new replacement characters; those already in the text are no error.
    replacements = text.count("\ufffd") - raw.count("\ufffd".encode())
    report.replaced_bytes += len(raw) - (len(text.encode()) - 3 * replacements)
    return text


def _hint(raw: bytes) -> str:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return " (the file looks like UTF-16)"
    return ""
