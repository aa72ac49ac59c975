"""Untrusted texts: no escape sequence reaches a terminal, no formula a spreadsheet."""

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
CONTROL_CHARACTERS = ("\x1b", "\x07", "\x9b", "\u202e", "\u2066", "\x7f")


def test_control_characters_are_escaped() -> None:
    assert escape_control_characters("a\x1b[1m\tb\n\r\x00\x7f\x9b\u202e\u2069é中") == (
        "a\\x1b[1m\tb\n\\x0d\\x00\\x7f\\x9b\\u202e\\u2069é中"
    )
    # Every C0 and C1 control but tab and line feed, DEL, and the eleven bidirectional ones.
    escaped = [code for code in range(0x3000) if escape_control_characters(chr(code)) != chr(code)]
    bidirectional = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
    c0 = [code for code in range(32) if code not in (9, 10)]
    assert escaped == [*c0, *range(0x7F, 0xA0), *bidirectional]


def test_escaped_json_holds_the_same_values() -> None:
    document = json.dumps({HOSTILE: [HOSTILE]}, ensure_ascii=False)
    safe = escape_control_characters_in_json(document)
    assert json.loads(safe) == {HOSTILE: [HOSTILE]}
    assert not any(character in safe for character in CONTROL_CHARACTERS)


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r"])
def test_csv_cells_are_not_formulas(begin: str) -> None:
    assert escape_csv_cell(f"{begin}cmd|x").startswith("'")
    assert escape_csv_cell(f"a{begin}b")[:2] == escape_control_characters(f"a{begin}")[:2]


def test_score_and_sample_print_no_control_characters(lmlab: Command, runs, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text(f"{HOSTILE}\n=cmd|x -5\n", encoding="utf-8")
    for options in ((), ("--per-token",), ("--per-word",), ("--csv",), ("--json",)):
        result = lmlab("score", runs["lstm"], file, *options)
        assert result.code == 0
        assert not any(character in result.out + result.err for character in CONTROL_CHARACTERS), (
            options
        )
    rows = csv.DictReader(io.StringIO(lmlab("score", runs["lstm"], file, "--csv").out))
    assert [row["word"] for row in rows if row["line"] == "2"] == ["'=cmd|x", "'-5", "</s>"]
    scores = json.loads(lmlab("score", runs["lstm"], file, "--json").out)
    assert scores[0]["text"] == HOSTILE
    sampled = lmlab("sample", runs["lstm"], "--prefix", "the \x1b[31m")
    assert sampled.code == 0 and "\x1b" not in sampled.out + sampled.err


def test_raw_keeps_control_characters(lmlab: Command, runs, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text(f"{HOSTILE}\n=cmd|x -5\n", encoding="utf-8")
    assert HOSTILE in lmlab("score", runs["lstm"], file, "--raw").out
    output = lmlab("score", runs["lstm"], file, "--csv", "--raw").out
    rows = list(csv.DictReader(io.StringIO(output)))
    assert [row["word"] for row in rows if row["line"] == "1"] == [*HOSTILE.split(), "</s>"]
    assert [row["word"] for row in rows if row["line"] == "2"] == ["=cmd|x", "-5", "</s>"]
    # --raw does not carry over to the next command.
    assert "\x1b" not in lmlab("score", runs["lstm"], file).out


def test_paradigm_names_in_csv_are_not_formulas(lmlab: Command, runs, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    pair = {"sentence_good": "the dog sleeps", "sentence_bad": "the dog sleep"}
    names = ("=cmd|x", "a\x1b[31m")
    file.write_text("".join(json.dumps({**pair, "UID": name}) + "\n" for name in names))
    for options, expected in (((), ["'=cmd|x", "a\\x1b[31m"]), (("--raw",), [*names])):
        result = lmlab("pairs", runs["ngram"], file, "--csv", *options)
        rows = list(csv.DictReader(io.StringIO(result.out)))
        assert [row["name"] for row in rows if row["by"] == "paradigm"] == expected


def test_errors_escape_control_characters(lmlab: Command, runs) -> None:
    for arguments in (("no\x1b[31msuch",), ("--text", "a", "--method", "\x1b[2J"), ("--\x1b",)):
        result = lmlab("score", runs["lstm"], *arguments)
        assert result.code == 2 and "\x1b" not in result.err and "\\x1b" in result.err
    assert "\x1b" not in lmlab("sc\x1bore").err


def test_every_command_prints_through_output_module() -> None:
    """A module that calls `print` imports it from lmlab.cli.output, which escapes."""
    folder = Path(lmlab.cli.__file__).parent
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == "print"]
        imported = any(
            isinstance(n, ast.ImportFrom)
            and n.module == "lmlab.cli.output"
            and "print" in [alias.name for alias in n.names]
            for n in ast.walk(tree)
        )
        assert not calls or imported or path.name == "output.py", path.name
