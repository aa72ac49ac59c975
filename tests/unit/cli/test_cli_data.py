"""`lmlab data list` and `lmlab data describe`."""

from __future__ import annotations

import json
from pathlib import Path

from lmlab.data.corpus_protocols import CORPUS_PROTOCOLS
from lmlab.data.load_corpus import builtin_descriptions


def test_list_names_every_corpus_and_protocol(lmlab) -> None:
    names = [line.split()[0] for line in lmlab("data", "list").out.splitlines()[1:] if line]
    own = ("contiguous:PATH", "parallel:DE-EN:FOLDER", "parallel:FILE,FILE")
    for name in (*builtin_descriptions(), *(f"{name}:PATH" for name in CORPUS_PROTOCOLS), *own):
        assert name in names


def test_list_as_json(lmlab) -> None:
    listed = json.loads(lmlab("data", "list", "--json").out)
    assert {each["name"] for each in listed if each["form"] == "built-in"} == set(
        builtin_descriptions()
    )


def test_describe_a_file_counts_what_is_in_it(lmlab, tmp_path: Path) -> None:
    file = tmp_path / "few.txt"
    file.write_text("a b c\n\na b\na b\n", encoding="utf-8")
    told = json.loads(lmlab("data", "describe", file, "--json").out)
    train = told["splits"]["train"]
    # Three lines of 3, 2 and 2 words, each with its end; one of them repeats another.
    assert (train["examples"], train["tokens"], train["duplicates"]) == (3, 10, 1)
    assert train["report"]["empty_lines"] == 1
    assert told["entropy"] is None


def test_describe_prints_the_entropy_where_it_is_known(lmlab) -> None:
    told = lmlab("data", "describe", "grammar").out
    assert "nats per text" in told
    assert "(exact)" in told
    assert "█" in told


def test_describe_a_file_in_another_encoding(lmlab, tmp_path: Path) -> None:
    file = tmp_path / "latin.txt"
    file.write_bytes("good\ncaf\xe9\n".encode("latin-1"))
    strict = lmlab("data", "describe", file)
    assert strict.code == 2
    assert f"{file}, line 2: byte 0xe9 at position 4 is not UTF-8" in strict.err
    replaced = json.loads(lmlab("data", "describe", file, "--errors", "replace", "--json").out)
    assert replaced["splits"]["train"]["report"]["replaced_bytes"] == 1


def test_describe_an_empty_file(lmlab, tmp_path: Path) -> None:
    file = tmp_path / "empty.txt"
    file.touch()
    result = lmlab("data", "describe", file)
    assert result.code == 2
    assert "holds no example" in result.err
