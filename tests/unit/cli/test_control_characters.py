"""Hostile texts: no escape sequence reaches a terminal, no formula a spreadsheet."""

from __future__ import annotations

import ast
import csv
import io
import json
from pathlib import Path

import pytest

import lmlab.cli
from lmlab.core.errors import (
    escape_control_characters,
    escape_control_characters_in_json,
    escape_csv_cell,
)

from .conftest import Command

HOSTILE = "the \x1b]0;owned\x07 \x9b31m \u202edog\u2066 \x7f"
HIDDEN = ("\x1b", "\x07", "\x9b", "\u202e", "\u2066", "\x7f")


def test_hidden_characters_are_shown_as_escapes() -> None:
    assert escape_control_characters("a\x1b[1m\tb\n\r\x00\x7f\x9b\u202e\u2069é中") == (
        "a\\x1b[1m\tb\n\\x0d\\x00\\x7f\\x9b\\u202e\\u2069é中"
    )
    # Every C0 and C1 control but tab and line feed, DEL, and the eleven bidirectional ones.
    hidden = [code for code in range(0x3000) if escape_control_characters(chr(code)) != chr(code)]
    bidirectional = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
    c0 = [code for code in range(32) if code not in (9, 10)]
    assert hidden == [*c0, *range(0x7F, 0xA0), *bidirectional]


def test_json_holds_the_same_values_without_hidden_characters() -> None:
    document = json.dumps({HOSTILE: [HOSTILE]}, ensure_ascii=False)
    safe = escape_control_characters_in_json(document)
    assert json.loads(safe) == {HOSTILE: [HOSTILE]}
    assert not any(character in safe for character in HIDDEN)


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r"])
def test_a_cell_is_no_formula(begin: str) -> None:
    assert escape_csv_cell(f"{begin}cmd|x").startswith("'")
    assert escape_csv_cell(f"a{begin}b")[:2] == escape_control_characters(f"a{begin}")[:2]


def test_no_verb_prints_control_characters(lmlab: Command, runs, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text(f"{HOSTILE}\n=cmd|x -5\n", encoding="utf-8")
    for options in ((), ("--per-token",), ("--per-word",), ("--csv",), ("--json",)):
        found = lmlab("score", runs["lstm"], file, *options)
        assert found.code == 0
        assert not any(character in found.out + found.err for character in HIDDEN), options
    rows = csv.DictReader(io.StringIO(lmlab("score", runs["lstm"], file, "--csv").out))
    assert [row["word"] for row in rows if row["line"] == "2"] == ["'=cmd|x", "'-5", "</s>"]
    scores = json.loads(lmlab("score", runs["lstm"], file, "--json").out)
    assert scores[0]["text"] == HOSTILE
    sampled = lmlab("sample", runs["lstm"], "--prefix", "the \x1b[31m")
    assert sampled.code == 0 and "\x1b" not in sampled.out + sampled.err


def test_raw_keeps_them(lmlab: Command, runs, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text(f"{HOSTILE}\n=cmd|x -5\n", encoding="utf-8")
    assert HOSTILE in lmlab("score", runs["lstm"], file, "--raw").out
    found = lmlab("score", runs["lstm"], file, "--csv", "--raw").out
    rows = list(csv.DictReader(io.StringIO(found)))
    assert [row["word"] for row in rows if row["line"] == "1"] == [*HOSTILE.split(), "</s>"]
    assert [row["word"] for row in rows if row["line"] == "2"] == ["=cmd|x", "-5", "</s>"]
    # The next command starts afresh.
    assert "\x1b" not in lmlab("score", runs["lstm"], file).out


def test_names_of_pairs_are_no_formulas(lmlab: Command, runs, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    pair = {"sentence_good": "the dog sleeps", "sentence_bad": "the dog sleep"}
    names = ("=cmd|x", "a\x1b[31m")
    file.write_text("".join(json.dumps({**pair, "UID": name}) + "\n" for name in names))
    for options, expected in (((), ["'=cmd|x", "a\\x1b[31m"]), (("--raw",), [*names])):
        found = lmlab("pairs", runs["ngram"], file, "--csv", *options)
        rows = list(csv.DictReader(io.StringIO(found.out)))
        assert [row["name"] for row in rows if row["by"] == "paradigm"] == expected


def test_errors_quote_them_visibly(lmlab: Command, runs) -> None:
    for arguments in (("no\x1b[31msuch",), ("--text", "a", "--method", "\x1b[2J"), ("--\x1b",)):
        found = lmlab("score", runs["lstm"], *arguments)
        assert found.code == 2 and "\x1b" not in found.err and "\\x1b" in found.err
    assert "\x1b" not in lmlab("sc\x1bore").err


def test_every_verb_prints_by_the_one_function() -> None:
    """A module that calls `print` takes it from lmlab.cli.output, which neutralises."""
    folder = Path(lmlab.cli.__file__).parent
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == "print"]
        taken = any(
            isinstance(n, ast.ImportFrom)
            and n.module == "lmlab.cli.output"
            and "print" in [alias.name for alias in n.names]
            for n in ast.walk(tree)
        )
        assert not calls or taken or path.name == "output.py", path.name
