"""Readers of each file format, and the errors for invalid rows."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.data.lines import ReadingReport
from lmlab.data.readers import (
    ChainedReaders,
    Example,
    ExampleReader,
    Fasta,
    GeneratedExamples,
    JsonLines,
    ParallelFiles,
    PlainText,
    TabSeparated,
)

WriteFile = Callable[[str, str | bytes], Path]


def read(reader: ExampleReader) -> list[Example]:
    return list(reader.read(ReadingReport()))


def test_plain_text_skips_empty_lines(write_file: WriteFile) -> None:
    reader = PlainText(path=write_file("a.txt", "one\n\n \ntwo\n"))
    assert read(reader) == [Example("one"), Example("two")]
    assert read(reader) == [Example("one"), Example("two")]  # a second pass starts over


def test_json_lines_accept_text_sentence_or_pairs(write_file: WriteFile) -> None:
    rows = '{"text": "a\\nb"}\n{"sentence": " c ", "x": 1}\n\n{"source": "s", "target": "t"}\n'
    path = write_file("a.jsonl", rows)
    expected = [Example("a\nb"), Example("c"), Example("t", condition="s")]
    assert read(JsonLines(path=path)) == expected
    packed = write_file("b.jsonl.gz", gzip.compress(path.read_bytes()))
    assert read(JsonLines(path=packed)) == expected


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"text": "a"', "expected a JSON object, but Expecting"),
        ("[1]", "expected a JSON object, got list"),
        ('{"body": "a"}', "expected 'text', 'sentence'.* its keys are 'body'"),
        ('{"text": 3}', "expected a string in 'text', got int"),
        ('{"text": "\\ud800"}', "half of a surrogate pair"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_invalid_json_row_is_reported_by_line_or_skipped(
    write_file: WriteFile, row: str, message: str
) -> None:
    path = write_file("a.jsonl", f'{{"text": "good"}}\n{row}\n')
    with pytest.raises(UserError, match=rf"a\.jsonl, line 2: .*{message}"):
        read(JsonLines(path=path))
    report = ReadingReport()
    assert list(JsonLines(path=path, errors="replace").read(report)) == [Example("good")]
    assert report.bad_rows == 1


def test_fasta_joins_lines_and_keeps_names(write_file: WriteFile) -> None:
    path = write_file("a.fa", ">first one\nACD\nEF G\n\n;comment\n>empty\n>second\nKL")
    report = ReadingReport()
    examples = list(Fasta(path=path).read(report))
    assert examples == [Example("ACDEFG", name="first one"), Example("KL", name="second")]
    assert report.bad_rows == 1  # the header without a sequence


def test_fasta_without_leading_header_is_refused(write_file: WriteFile) -> None:
    with pytest.raises(UserError, match="line 1: letters before the first '>' line"):
        read(Fasta(path=write_file("a.fa", "ACD\n>x\nA\n")))


def test_parallel_files_are_aligned_by_line(write_file: WriteFile) -> None:
    # A line that is empty on one side drops its pair and does not shift the others.
    reader = ParallelFiles(
        source=write_file("a.de", "eins\n\ndrei\n\n"),
        target=write_file("a.en", "one\ntwo\nthree\n\n"),
    )
    report = ReadingReport()
    examples = list(reader.read(report))
    assert examples == [Example("one", condition="eins"), Example("three", condition="drei")]
    assert (report.empty_rows, report.empty_lines) == (1, 2)


def test_pairs_with_an_empty_side_are_skipped_and_counted(write_file: WriteFile) -> None:
    sides = [("eins", "one"), ("zwei", ""), ("", "three"), ("vier", "four")]
    expected = [Example("one", condition="eins"), Example("four", condition="vier")]
    rows = [json.dumps({"source": source, "target": target}) for source, target in sides]
    readers = [
        JsonLines(path=write_file("a.jsonl", "\n".join(rows))),
        TabSeparated(path=write_file("a.tsv", "".join(f"{a} \t{b}\t\r\n" for a, b in sides))),
        TabSeparated(path=write_file("b.tsv", "".join(f"{a}\t{b}\n" for a, b in sides))),
    ]
    for reader in readers:
        report = ReadingReport()
        assert list(reader.read(report)) == expected
        assert (report.empty_rows, report.empty_lines, report.bad_rows) == (2, 0, 0)
        assert report.losses() == "2 rows with an empty text or side skipped"


@pytest.mark.parametrize(("german", "english"), [(2, 5), (5, 2)])
def test_unequal_parallel_files_are_reported_with_both_counts(
    write_file: WriteFile, german: int, english: int
) -> None:
    reader = ParallelFiles(
        source=write_file("a.de", "x\n" * german), target=write_file("a.en", "x\n" * english)
    )
    with pytest.raises(UserError, match=r"has 2, .*has 5; line them up"):
        read(reader)


def test_tab_separated_pairs_are_read(write_file: WriteFile) -> None:
    path = write_file("a.tsv", "eins\tone\n\nzwei two\ndrei\tthree\n")
    with pytest.raises(UserError, match=r"line 3: expected two columns .*got 1"):
        read(TabSeparated(path=path))
    report = ReadingReport()
    examples = list(TabSeparated(path=path, errors="replace").read(report))
    assert examples == [Example("one", condition="eins"), Example("three", condition="drei")]
    assert (report.bad_rows, report.empty_lines) == (1, 1)


def test_chained_readers_are_read_in_order(write_file: WriteFile) -> None:
    parts = tuple(PlainText(path=write_file(f"{name}.txt", f"{name}\n")) for name in "ba")
    report = ReadingReport()
    assert [e.text for e in ChainedReaders(parts).read(report)] == ["b", "a"]
    assert report.files == 2


def test_reader_identity_depends_on_content_and_options(write_file: WriteFile) -> None:
    path = write_file("a.txt", "one\n")
    twin = write_file("b.txt", "one\n")
    before = PlainText(path=path).identity()
    assert PlainText(path=twin).identity() == before
    assert PlainText(path=path, errors="replace").identity() != before
    assert JsonLines(path=path).identity() != before
    write_file("a.txt", "two\n")
    os.utime(path, ns=(1, 1))  # of the same size; only the modification time shows the change
    assert PlainText(path=path).identity() != before
    assert (
        GeneratedExamples(lambda: [], "x-1").identity()
        != GeneratedExamples(lambda: [], "x-2").identity()
    )
