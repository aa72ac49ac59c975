"""Each format as examples, and what its bad rows say."""

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

Write = Callable[[str, str | bytes], Path]


def read(reader: ExampleReader) -> list[Example]:
    return list(reader.read(ReadingReport()))


def test_plain_text_skips_empty_lines(write: Write) -> None:
    reader = PlainText(path=write("a.txt", "one\n\n \ntwo\n"))
    assert read(reader) == [Example("one"), Example("two")]
    assert read(reader) == [Example("one"), Example("two")]  # again, from the start


def test_json_lines_take_text_sentence_or_pairs(write: Write) -> None:
    rows = '{"text": "a\\nb"}\n{"sentence": " c ", "x": 1}\n\n{"source": "s", "target": "t"}\n'
    path = write("a.jsonl", rows)
    expected = [Example("a\nb"), Example("c"), Example("t", condition="s")]
    assert read(JsonLines(path=path)) == expected
    packed = write("b.jsonl.gz", gzip.compress(path.read_bytes()))
    assert read(JsonLines(path=packed)) == expected


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ('{"text": "a"', "expected a JSON object, but Expecting"),
        ("[1]", "expected a JSON object, got list"),
        ('{"body": "a"}', "expected 'text', 'sentence'.* its keys are 'body'"),
        ('{"text": 3}', "expected a string in 'text', got int"),
        ('{"text": "\\ud800"}', "half of a surrogate pair"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_json_row_is_told_with_its_line_or_skipped(
    write: Write, row: str, complaint: str
) -> None:
    path = write("a.jsonl", f'{{"text": "good"}}\n{row}\n')
    with pytest.raises(UserError, match=rf"a\.jsonl, line 2: .*{complaint}"):
        read(JsonLines(path=path))
    report = ReadingReport()
    assert list(JsonLines(path=path, errors="replace").read(report)) == [Example("good")]
    assert report.bad_rows == 1


def test_fasta_joins_lines_and_keeps_names(write: Write) -> None:
    path = write("a.fa", ">first one\nACD\nEF G\n\n;comment\n>empty\n>second\nKL")
    report = ReadingReport()
    examples = list(Fasta(path=path).read(report))
    assert examples == [Example("ACDEFG", name="first one"), Example("KL", name="second")]
    assert report.bad_rows == 1  # the name without letters


def test_fasta_needs_a_name_first(write: Write) -> None:
    with pytest.raises(UserError, match="line 1: letters before the first '>' line"):
        read(Fasta(path=write("a.fa", "ACD\n>x\nA\n")))


def test_parallel_files_go_side_by_side(write: Write) -> None:
    # A line that is empty on one side drops its pair and does not shift the others.
    reader = ParallelFiles(
        source=write("a.de", "eins\n\ndrei\n\n"), target=write("a.en", "one\ntwo\nthree\n\n")
    )
    report = ReadingReport()
    found = list(reader.read(report))
    assert found == [Example("one", condition="eins"), Example("three", condition="drei")]
    assert (report.empty_rows, report.empty_lines) == (1, 2)


def test_a_row_with_an_empty_side_is_skipped_and_counted_in_every_form(write: Write) -> None:
    sides = [("eins", "one"), ("zwei", ""), ("", "three"), ("vier", "four")]
    kept = [Example("one", condition="eins"), Example("four", condition="vier")]
    rows = [json.dumps({"source": source, "target": target}) for source, target in sides]
    readers = [
        JsonLines(path=write("a.jsonl", "\n".join(rows))),
        TabSeparated(path=write("a.tsv", "".join(f"{a} \t{b}\t\r\n" for a, b in sides))),
        TabSeparated(path=write("b.tsv", "".join(f"{a}\t{b}\n" for a, b in sides))),
    ]
    for reader in readers:
        report = ReadingReport()
        assert list(reader.read(report)) == kept
        assert (report.empty_rows, report.empty_lines, report.bad_rows) == (2, 0, 0)
        assert report.losses() == "2 rows with an empty text or side skipped"


@pytest.mark.parametrize(("german", "english"), [(2, 5), (5, 2)])
def test_unequal_parallel_files_are_told_with_both_counts(
    write: Write, german: int, english: int
) -> None:
    reader = ParallelFiles(
        source=write("a.de", "x\n" * german), target=write("a.en", "x\n" * english)
    )
    with pytest.raises(UserError, match=r"has 2, .*has 5; line them up"):
        read(reader)


def test_tab_separated_pairs(write: Write) -> None:
    path = write("a.tsv", "eins\tone\n\nzwei two\ndrei\tthree\n")
    with pytest.raises(UserError, match=r"line 3: expected two columns .*got 1"):
        read(TabSeparated(path=path))
    report = ReadingReport()
    examples = list(TabSeparated(path=path, errors="replace").read(report))
    assert examples == [Example("one", condition="eins"), Example("three", condition="drei")]
    assert (report.bad_rows, report.empty_lines) == (1, 1)


def test_several_readers_are_one_after_another(write: Write) -> None:
    parts = tuple(PlainText(path=write(f"{name}.txt", f"{name}\n")) for name in "ba")
    report = ReadingReport()
    assert [e.text for e in ChainedReaders(parts).read(report)] == ["b", "a"]
    assert report.files == 2


def test_identity_follows_content_and_options(write: Write) -> None:
    path = write("a.txt", "one\n")
    twin = write("b.txt", "one\n")
    before = PlainText(path=path).identity()
    assert PlainText(path=twin).identity() == before
    assert PlainText(path=path, errors="replace").identity() != before
    assert JsonLines(path=path).identity() != before
    write("a.txt", "two\n")
    os.utime(path, ns=(1, 1))  # of the same size; its time is what tells that it must be read again
    assert PlainText(path=path).identity() != before
    assert (
        GeneratedExamples(lambda: [], "x-1").identity()
        != GeneratedExamples(lambda: [], "x-2").identity()
    )
