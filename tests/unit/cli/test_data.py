"""`lmlab data list` and `lmlab data describe`."""

from __future__ import annotations

import json
from pathlib import Path

from lmlab.data.builtin_corpora import builtin_descriptions
from lmlab.data.standard_datasets import CORPUS_PROTOCOLS


def test_list_names_every_corpus_and_protocol(lmlab) -> None:
    names = [line.split()[0] for line in lmlab("data", "list").out.splitlines()[1:] if line]
    own = ("contiguous:PATH", "parallel:DE-EN:FOLDER", "parallel:FILE,FILE")
    for name in (*builtin_descriptions(), *(f"{name}:PATH" for name in CORPUS_PROTOCOLS), *own):
        assert name in names


def test_list_as_json(lmlab) -> None:
    listed = json.loads(lmlab("data", "list", "--json").out)
    assert {entry["name"] for entry in listed if entry["form"] == "built-in"} == set(
        builtin_descriptions()
    )


def test_describe_counts_examples_tokens_and_duplicates(lmlab, tmp_path: Path) -> None:
    file = tmp_path / "few.txt"
    file.write_text("a b c\n\na b\na b\n", encoding="utf-8")
    output = json.loads(lmlab("data", "describe", file, "--json").out)
    train = output["splits"]["train"]
    # Three lines of 3, 2 and 2 words, each with an end token; one is a duplicate.
    assert (train["examples"], train["tokens"], train["duplicates"]) == (3, 10, 1)
    assert train["report"]["empty_lines"] == 1
    assert output["entropy"] is None


def test_describe_prints_known_entropy(lmlab) -> None:
    output = lmlab("data", "describe", "grammar").out
    assert "nats per text" in output
    assert "(exact)" in output
    assert "█" in output


def test_describe_refuses_or_replaces_non_utf8(lmlab, tmp_path: Path) -> None:
    file = tmp_path / "latin.txt"
    file.write_bytes("good\ncaf\xe9\n".encode("latin-1"))
    strict = lmlab("data", "describe", file)
    assert strict.code == 2
    assert f"{file}, line 2: byte 0xe9 at position 4 is not UTF-8" in strict.err
    replaced = json.loads(lmlab("data", "describe", file, "--errors", "replace", "--json").out)
    assert replaced["splits"]["train"]["report"]["replaced_bytes"] == 1


def test_describe_refuses_an_empty_file(lmlab, tmp_path: Path) -> None:
    file = tmp_path / "empty.txt"
    file.touch()
    result = lmlab("data", "describe", file)
    assert result.code == 2
    assert "holds no example" in result.err
