"""Texts of files, pipes and the command line: line numbers, empty lines, unknown words."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pytest

from lmlab.cli.main import main
from lmlab.cli.text_inputs import read_text_arguments, read_texts
from lmlab.core.errors import UserError

from .conftest import Command


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("masked") / "bert"
    words = ("--size", "tiny", "--steps", "2", "--data", "grammar")
    assert main(["train", "bert", "--out", str(run), *words]) == 0
    return run


@pytest.fixture(scope="module")
def task(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of two words, trained for a moment."""
    folder = tmp_path_factory.mktemp("task")
    rows = [{"text": f"the {w}", "label": w} for w in ("dog", "cat") for _ in range(20)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    options = ("--task", "classify", "--data", str(folder / "rows.jsonl"), "--steps", "1")
    assert main(["finetune", str(bert), "--out", str(folder / "run"), *options]) == 0
    return folder / "run"


def lines_of(content: bytes, path: Path, **options: bool) -> list[tuple[int | None, str]]:
    path.write_bytes(content)
    return [(line.line, line.text) for line in read_texts(str(path), [], "strict", **options).lines]


def piped(content: bytes, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int | None, str]]:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    return [(line.line, line.text) for line in read_texts("-", [], "strict").lines]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"dog\n\ncat", [(1, "dog"), (2, ""), (3, "cat")]),
        (b"\n \ndog\n\n", [(1, ""), (2, ""), (3, "dog"), (4, "")]),
        (b"\xef\xbb\xbfdog\r\n\r\ncat\r\n", [(1, "dog"), (2, ""), (3, "cat")]),
        (b"a\tb\n", [(1, "a\tb")]),
        (b"x" * 200_000 + b"\ndog", [(1, "x" * 200_000), (2, "dog")]),
    ],
    ids=["blank", "ends", "windows", "tab", "long"],
)
def test_every_line_keeps_its_number(content, expected, tmp_path: Path, monkeypatch) -> None:
    assert lines_of(content, tmp_path / "texts.txt") == expected
    assert piped(content, monkeypatch) == expected


def test_skipped_rows_of_json_and_sequences_keep_their_numbers(tmp_path: Path) -> None:
    rows = b'{"text": "dog"}\n\n{"text": " "}\n{"text": "cat"}\n'
    assert lines_of(rows, tmp_path / "a.jsonl") == [(1, "dog"), (2, ""), (3, ""), (4, "cat")]
    assert lines_of(b">one\nAC\nGT\n>two\nA\n", tmp_path / "a.fa") == [(1, "ACGT"), (4, "A")]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes there")
def test_a_named_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    if os.fork() == 0:  # the writer
        pipe.write_bytes(b"dog\n\ncat\n")
        os._exit(0)
    assert [line.text for line in read_texts(str(pipe), [], "strict").lines] == ["dog", "", "cat"]
    os.wait()


def test_an_argument_is_a_file_where_there_is_one(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("dog\ncat\n")
    assert [*read_text_arguments([str(file)], [], None, "strict").texts] == ["dog", "cat"]
    assert [*read_text_arguments(["dog x", "cat"], [], None, "strict").texts] == ["dog x", "cat"]
    assert [*read_text_arguments([], ["dog"], None, "strict").texts] == ["dog"]
    with pytest.raises(UserError, match=r"there is no file no-such\.txt"):
        read_text_arguments(["no-such.txt"], [], None, "strict")
    with pytest.raises(UserError, match="exactly one of"):
        read_text_arguments(["dog"], ["cat"], None, "strict")


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("detector") / "electra"
    words = ("--size", "tiny", "--steps", "1", "--data", "grammar")
    assert main(["train", "electra", "--out", str(run), *words]) == 0
    return run


TAKES = ("score", "fill", "detect", "encode", "predict", "cloze")


@pytest.mark.parametrize("verb", TAKES)
def test_verbs_take_files_and_texts_alike(
    lmlab: Command, bert: Path, task: Path, detector: Path, verb: str, tmp_path: Path, monkeypatch
) -> None:
    """FILE, -, TEXT..., --text and --file name the same two texts, with the same answer."""
    monkeypatch.chdir(tmp_path)
    texts = (
        ["the <mask> sleeps", "a cat sees the <mask>"] if verb == "fill" else ["the dog", "a cat"]
    )
    Path("texts").write_text("\n".join(texts), encoding="utf-8")
    options = ("--out", "vectors.npz") if verb == "encode" else ()
    run = {"predict": task, "detect": detector}.get(verb, bert)
    ways = [
        ("texts",),
        ("--file", "texts"),
        (*texts,),
        ("--text", *texts),
        ("--text", texts[0], "--text", texts[1]),
    ]
    answers = []
    for way in ways:
        found = lmlab(verb, run, *way, *options)
        assert (found.code, found.err) == (0, ""), way
        answers.append(found.out.replace("the command line", "texts"))
    assert answers[0] and set(answers) == {answers[0]}
    refused = lmlab(verb, run, "texts", texts[0], *options)
    assert refused.code == 2 and "a file is given alone, got texts among 2 arguments" in refused.err
    for way in (("texts", "--text", "the dog"), ("--file", "texts", "--text", "the dog")):
        assert "give exactly one of: a FILE, - for" in lmlab(verb, run, *way, *options).err


@pytest.mark.parametrize("name", ["nope", "nope.txt", "some/nope"])
def test_a_mistyped_file_is_not_scored_as_a_text(lmlab: Command, runs, name: str) -> None:
    found = lmlab("score", runs["lstm"], name)
    assert (found.code, found.out) == (2, "")
    assert f"there is no file {name}; check the path, or give a text by --text." in found.err


def test_empty_lines_are_told_and_have_no_row(lmlab: Command, runs, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("the dog\n\na cat\n\n")
    found = lmlab("score", runs["lstm"], file, "--csv")
    rows = list(csv.DictReader(io.StringIO(found.out)))
    assert {row["line"] for row in rows} == {"1", "3"}
    assert found.err == (
        "texts.txt: 2 of 4 lines are empty: no row, and the numbering counts them.\n"
    )
    given = lmlab("score", runs["lstm"], "--given", "the", file, "--json")
    assert [each["line"] for each in json.loads(given.out)] == [1, 3]
    assert "2 of 4 lines are empty" in given.err
    assert "2 of 4 lines are empty" in lmlab("cloze", runs["lstm"], file).err


def test_an_empty_text_has_no_score(lmlab: Command, runs) -> None:
    found = lmlab("score", runs["lstm"], "--text", "")
    assert (found.code, found.out) == (2, "")
    assert found.err == (
        "lmlab: the command line holds no text, only 1 empty text; give at least one word.\n"
    )
    both = lmlab("score", runs["lstm"], "--text", "", "--text", "the dog", "--json")
    assert [each["line"] for each in json.loads(both.out)] == [2]
    assert "1 of 2 texts is empty" in both.err


def test_the_kind_tells_pseudo_scores_from_surprisal(lmlab: Command, bert, tmp_path) -> None:
    found = lmlab("score", bert, "--text", "the dog", "--csv")
    assert {row["kind"] for row in csv.DictReader(io.StringIO(found.out))} == {"pseudo"}
    file = tmp_path / "gaps.txt"
    file.write_text("the <mask>\n\na <mask>\n")
    # A file, --file, a pipe's dash and --text are the same input.
    asked = json.loads(lmlab("fill", bert, file, "--json").out)
    assert [(each["line"], each["text"], len(each["masks"])) for each in asked] == [
        (1, "the <mask>", 1),
        (2, "", 0),
        (3, "a <mask>", 1),
    ]
    assert json.loads(lmlab("fill", bert, "--file", file, "--json").out) == asked
    texts = ("--text", "the <mask>", "--text", "", "--text", "a <mask>")
    assert json.loads(lmlab("fill", bert, *texts, "--json").out) == asked


def test_answers_stay_beside_their_lines(lmlab: Command, task: Path, tmp_path: Path) -> None:
    plain, rows = tmp_path / "texts.txt", tmp_path / "rows.jsonl"
    plain.write_text("the dog\n\nthe cat\n")
    rows.write_text('{"text": "the dog"}\n\n{"text": "the cat"}\n')
    found = lmlab("predict", task, plain)
    first, empty, last = found.out.splitlines()
    assert first in ("dog", "cat") and last in ("dog", "cat") and empty == ""
    assert lmlab("predict", task, rows).out == found.out
    told = json.loads(lmlab("predict", task, plain, "--json").out)
    assert [(each["line"], each.get("text", "")) for each in told] == [
        (1, "the dog"),
        (2, ""),
        (3, "the cat"),
    ]
    assert told[1]["answered"] == ""
    rows.write_text('{"text": "the dog"}\nthe cat\n')
    assert "rows.jsonl, line 2: expected a JSON object" in lmlab("predict", task, rows).err


def test_unknown_words_are_told_once(lmlab: Command, runs, task: Path, tmp_path: Path) -> None:
    expected = "warning: 50 % of the words (2 of 4) are unknown to this tokenizer"
    told = ("--text", "the quetzal", "--text", "a quetzal")
    for verb in (("score", runs["lstm"]), ("predict", task)):
        found = lmlab(*verb, *told)
        assert found.code == 0 and found.err.startswith(expected)
        assert "'quetzal' (2 times)" in found.err and found.err.count("\n") == 1
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"sentence_good": "the quetzal", "sentence_bad": "a quetzal"}\n')
    assert lmlab("pairs", runs["lstm"], file).err.startswith(expected)
    # One of twenty is not more than a few per cent.
    assert lmlab("score", runs["lstm"], "--text", "the dog " * 9 + "the quetzal").err == ""


def test_unknown_words_of_training_rows_are_told(lmlab: Command, bert, tmp_path: Path) -> None:
    rows = [{"text": f"quetzal {w}", "label": w} for w in ("dog", "cat") for _ in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    options = ("--task", "classify", "--data", tmp_path / "rows.jsonl", "--steps", 1)
    with pytest.warns(UserWarning, match=r"50 % of the words .* 'quetzal' \(36 times\)"):
        assert lmlab("finetune", bert, "--out", tmp_path / "run", *options).code == 0
