"""Texts from files, pipes and the command line: line numbers, empty lines, unknown words."""

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
    options = ("--size", "tiny", "--steps", "2", "--data", "grammar")
    assert main(["train", "bert", "--out", str(run), *options]) == 0
    return run


@pytest.fixture(scope="module")
def task(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A briefly trained classifier of two words."""
    folder = tmp_path_factory.mktemp("task")
    rows = [{"text": f"the {w}", "label": w} for w in ("dog", "cat") for _ in range(20)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    options = ("--task", "classify", "--data", str(folder / "rows.jsonl"), "--steps", "1")
    assert main(["finetune", str(bert), "--out", str(folder / "run"), *options]) == 0
    return folder / "run"


def file_lines(content: bytes, path: Path, **options: bool) -> list[tuple[int | None, str]]:
    path.write_bytes(content)
    return [(line.line, line.text) for line in read_texts(str(path), [], "strict", **options).lines]


def stdin_lines(content: bytes, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int | None, str]]:
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
def test_line_numbers_count_empty_lines(content, expected, tmp_path: Path, monkeypatch) -> None:
    assert file_lines(content, tmp_path / "texts.txt") == expected
    assert stdin_lines(content, monkeypatch) == expected


def test_line_numbers_of_jsonl_and_fasta(tmp_path: Path) -> None:
    rows = b'{"text": "dog"}\n\n{"text": " "}\n{"text": "cat"}\n'
    assert file_lines(rows, tmp_path / "a.jsonl") == [(1, "dog"), (2, ""), (3, ""), (4, "cat")]
    assert file_lines(b">one\nAC\nGT\n>two\nA\n", tmp_path / "a.fa") == [(1, "ACGT"), (4, "A")]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes there")
def test_named_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    if os.fork() == 0:  # the writer
        pipe.write_bytes(b"dog\n\ncat\n")
        os._exit(0)
    assert [line.text for line in read_texts(str(pipe), [], "strict").lines] == ["dog", "", "cat"]
    os.wait()


def test_single_argument_is_a_file_if_it_exists(tmp_path: Path) -> None:
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
    options = ("--size", "tiny", "--steps", "1", "--data", "grammar")
    assert main(["train", "electra", "--out", str(run), *options]) == 0
    return run


TEXT_COMMANDS = ("score", "fill", "detect", "encode", "predict", "cloze")


@pytest.mark.parametrize("command", TEXT_COMMANDS)
def test_commands_accept_files_and_texts_alike(
    lmlab: Command,
    bert: Path,
    task: Path,
    detector: Path,
    command: str,
    tmp_path: Path,
    monkeypatch,
) -> None:
    """FILE, TEXT..., --text and --file give the same two texts, with the same output."""
    monkeypatch.chdir(tmp_path)
    texts = (
        ["the <mask> sleeps", "a cat sees the <mask>"]
        if command == "fill"
        else ["the dog", "a cat"]
    )
    Path("texts").write_text("\n".join(texts), encoding="utf-8")
    options = ("--out", "vectors.npz") if command == "encode" else ()
    run = {"predict": task, "detect": detector}.get(command, bert)
    forms = [
        ("texts",),
        ("--file", "texts"),
        (*texts,),
        ("--text", *texts),
        ("--text", texts[0], "--text", texts[1]),
    ]
    answers = []
    for form in forms:
        result = lmlab(command, run, *form, *options)
        assert (result.code, result.err) == (0, ""), form
        answers.append(result.out.replace("the command line", "texts"))
    assert answers[0] and set(answers) == {answers[0]}
    refused = lmlab(command, run, "texts", texts[0], *options)
    assert refused.code == 2 and "a file is given alone, got texts among 2 arguments" in refused.err
    for form in (("texts", "--text", "the dog"), ("--file", "texts", "--text", "the dog")):
        assert "give exactly one of: a FILE, - for" in lmlab(command, run, *form, *options).err


@pytest.mark.parametrize("name", ["nope", "nope.txt", "some/nope"])
def test_missing_file_is_not_scored_as_text(lmlab: Command, runs, name: str) -> None:
    result = lmlab("score", runs["lstm"], name)
    assert (result.code, result.out) == (2, "")
    assert f"there is no file {name}; check the path, or give a text by --text." in result.err


def test_empty_lines_are_reported_and_have_no_row(lmlab: Command, runs, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("the dog\n\na cat\n\n")
    result = lmlab("score", runs["lstm"], file, "--csv")
    rows = list(csv.DictReader(io.StringIO(result.out)))
    assert {row["line"] for row in rows} == {"1", "3"}
    assert result.err == (
        "texts.txt: 2 of 4 lines are empty: no row, and the numbering counts them.\n"
    )
    given = lmlab("score", runs["lstm"], "--given", "the", file, "--json")
    assert [record["line"] for record in json.loads(given.out)] == [1, 3]
    assert "2 of 4 lines are empty" in given.err
    assert "2 of 4 lines are empty" in lmlab("cloze", runs["lstm"], file).err


def test_empty_text_has_no_score(lmlab: Command, runs) -> None:
    result = lmlab("score", runs["lstm"], "--text", "")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "lmlab: the command line holds no text, only 1 empty text; give at least one word.\n"
    )
    both = lmlab("score", runs["lstm"], "--text", "", "--text", "the dog", "--json")
    assert [record["line"] for record in json.loads(both.out)] == [2]
    assert "1 of 2 texts is empty" in both.err


def test_masked_model_kind_is_pseudo_and_fill_keeps_lines(lmlab: Command, bert, tmp_path) -> None:
    result = lmlab("score", bert, "--text", "the dog", "--csv")
    assert {row["kind"] for row in csv.DictReader(io.StringIO(result.out))} == {"pseudo"}
    file = tmp_path / "gaps.txt"
    file.write_text("the <mask>\n\na <mask>\n")
    # A file, --file and --text are the same input.
    output = json.loads(lmlab("fill", bert, file, "--json").out)
    assert [(record["line"], record["text"], len(record["masks"])) for record in output] == [
        (1, "the <mask>", 1),
        (2, "", 0),
        (3, "a <mask>", 1),
    ]
    assert json.loads(lmlab("fill", bert, "--file", file, "--json").out) == output
    texts = ("--text", "the <mask>", "--text", "", "--text", "a <mask>")
    assert json.loads(lmlab("fill", bert, *texts, "--json").out) == output


def test_predictions_keep_their_line_numbers(lmlab: Command, task: Path, tmp_path: Path) -> None:
    plain, rows = tmp_path / "texts.txt", tmp_path / "rows.jsonl"
    plain.write_text("the dog\n\nthe cat\n")
    rows.write_text('{"text": "the dog"}\n\n{"text": "the cat"}\n')
    result = lmlab("predict", task, plain)
    first, empty, last = result.out.splitlines()
    assert first in ("dog", "cat") and last in ("dog", "cat") and empty == ""
    assert lmlab("predict", task, rows).out == result.out
    output = json.loads(lmlab("predict", task, plain, "--json").out)
    assert [(record["line"], record.get("text", "")) for record in output] == [
        (1, "the dog"),
        (2, ""),
        (3, "the cat"),
    ]
    assert output[1]["answered"] == ""
    rows.write_text('{"text": "the dog"}\nthe cat\n')
    assert "rows.jsonl, line 2: expected a JSON object" in lmlab("predict", task, rows).err


def test_unknown_words_are_reported_once(lmlab: Command, runs, task: Path, tmp_path: Path) -> None:
    expected = "warning: 50 % of the words (2 of 4) are unknown to this tokenizer"
    texts = ("--text", "the quetzal", "--text", "a quetzal")
    for command in (("score", runs["lstm"]), ("predict", task)):
        result = lmlab(*command, *texts)
        assert result.code == 0 and result.err.startswith(expected)
        assert "'quetzal' (2 times)" in result.err and result.err.count("\n") == 1
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"sentence_good": "the quetzal", "sentence_bad": "a quetzal"}\n')
    assert lmlab("pairs", runs["lstm"], file).err.startswith(expected)
    # One unknown word of twenty is below the threshold of the warning.
    assert lmlab("score", runs["lstm"], "--text", "the dog " * 9 + "the quetzal").err == ""


def test_finetune_warns_of_unknown_words(lmlab: Command, bert, tmp_path: Path) -> None:
    rows = [{"text": f"quetzal {w}", "label": w} for w in ("dog", "cat") for _ in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    options = ("--task", "classify", "--data", tmp_path / "rows.jsonl", "--steps", 1)
    with pytest.warns(UserWarning, match=r"50 % of the words .* 'quetzal' \(36 times\)"):
        assert lmlab("finetune", bert, "--out", tmp_path / "run", *options).code == 0
