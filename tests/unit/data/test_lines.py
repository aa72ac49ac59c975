"""Bytes to lines: irregular input is handled, counted, or reported with its line."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.data.lines import LONG_LINE, ReadingReport, check_errors, numbered_lines

WriteFile = Callable[[str, str | bytes], Path]


def read(path: Path, errors: str = "strict") -> tuple[list[tuple[int, str]], ReadingReport]:
    report = ReadingReport()
    return list(numbered_lines(path, report, check_errors(errors))), report


def test_lines_are_numbered_and_stripped(write_file: WriteFile) -> None:
    lines, report = read(write_file("a.txt", " one \n\n\ttwo\nthree"))
    assert lines == [(1, "one"), (2, ""), (3, "two"), (4, "three")]
    assert (report.files, report.lines, report.empty_lines) == (1, 4, 1)


def test_crlf_and_bom_are_stripped_and_counted(write_file: WriteFile) -> None:
    lines, report = read(write_file("a.txt", b"\xef\xbb\xbfone\r\ntwo\r\n\r\nthree\n"))
    assert lines == [(1, "one"), (2, "two"), (3, ""), (4, "three")]
    assert (report.bom_files, report.crlf_lines, report.empty_lines) == (1, 3, 1)
    assert "3 lines with Windows endings" in report.summary()
    assert "1 files with a byte order mark" in report.summary()


def test_only_line_feeds_separate_lines(write_file: WriteFile) -> None:
    # str.splitlines would break at each of these; an editor's line numbers would then be wrong.
    lines, _ = read(write_file("a.txt", "a\u2028b\x0bc\x85d\n"))
    assert len(lines) == 1


def test_invalid_utf8_is_reported_with_file_and_line(write_file: WriteFile) -> None:
    path = write_file("latin.txt", "gut\nschön\n".encode("latin-1"))
    with pytest.raises(
        UserError, match=r"latin\.txt, line 2: byte 0xf6 at position 4 is not UTF-8"
    ):
        read(path)


def test_utf16_is_recognised(write_file: WriteFile) -> None:
    with pytest.raises(UserError, match=r"line 1: .*looks like UTF-16"):
        read(write_file("a.txt", "text".encode("utf-16")))


@pytest.mark.parametrize(
    ("raw", "text", "replaced"),
    [
        (b"sch\xf6n", "sch\ufffdn", 1),
        (b"\xff\xfe\xff", "\ufffd\ufffd\ufffd", 3),
        (b"a\xe4\xb8", "a\ufffd", 2),  # the first two of three bytes of 一: one mark for two bytes
        ("\ufffd".encode() + b"\xff", "\ufffd\ufffd", 1),  # U+FFFD in the file
    ],
)
def test_replaced_bytes_are_counted(
    write_file: WriteFile, raw: bytes, text: str, replaced: int
) -> None:
    lines, report = read(write_file("a.txt", raw), errors="replace")
    assert lines == [(1, text)]
    assert report.replaced_bytes == replaced


def test_line_of_ten_million_characters_is_read_and_counted(write_file: WriteFile) -> None:
    lines, report = read(write_file("long.txt", b"ab " * 3_333_333 + b"c\nshort\n"))
    assert [len(text) for _, text in lines] == [10_000_000, 5]
    assert report.long_lines == 1
    assert f"1 lines longer than {LONG_LINE:,} characters" in report.summary()


def test_gzip_is_detected_by_magic_bytes(write_file: WriteFile) -> None:
    lines, _ = read(write_file("no-suffix", gzip.compress(b"eins\nzwei\n")))
    assert lines == [(1, "eins"), (2, "zwei")]


def test_truncated_gzip_is_reported(write_file: WriteFile) -> None:
    whole = gzip.compress(bytes(range(65, 91)) * 1000)
    with pytest.raises(UserError, match=r"a\.gz is damaged or cut short"):
        read(write_file("a.gz", whole[: len(whole) // 2]))


def test_corrupted_gzip_is_reported(write_file: WriteFile) -> None:
    whole = bytearray(gzip.compress(b"text\n" * 1000))
    whole[-6] ^= 0xFF  # the checksum
    with pytest.raises(UserError, match="damaged"):
        read(write_file("a.gz", bytes(whole)))


def test_missing_file_and_directory_are_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*gone\.txt: No such file"):
        read(tmp_path / "gone.txt")
    with pytest.raises(UserError, match="Is a directory"):
        read(tmp_path)


def test_errors_option_has_two_values() -> None:
    with pytest.raises(UserError, match="'strict' or 'replace', got 'ignore'"):
        check_errors("ignore")
