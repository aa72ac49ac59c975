"""`lmlab index`: build, search and info, by a run and by words; every mistake in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lmlab.cli.index import format_size, shorten_text
from lmlab.cli.main import main
from lmlab.training.run_folder import load_run

pytest.importorskip("bm25s")
pytestmark = pytest.mark.xdist_group("cli-index")  # its run and its indexes are made once
ROWS = (
    {"text": "the dog sleeps", "name": "dog", "title": "Dogs"},
    {"text": "a cat sees the dog", "name": "cat"},
    {"text": "mary walks", "name": "mary"},
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder, three documents, and an index of them by each of two ways."""
    folder = tmp_path_factory.mktemp("index")
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    (folder / "docs.jsonl").write_text(lines, encoding="utf-8")
    budget = ("--size", "tiny", "--steps", "2", "--data", "grammar", "--out", str(folder / "bert"))
    assert main(["train", "bert", *budget]) == 0
    for name, encoder in (("dense", str(folder / "bert")), ("words", "bm25")):
        out = ("--encoder", encoder, "--out", str(folder / name))
        assert main(["index", "build", str(folder / "docs.jsonl"), *out]) == 0
    return folder


def test_an_index_by_words_is_searched(lmlab, made: Path):
    found = lmlab("index", "search", made / "words", "Cat!", "-k", 2)
    header, row = found.out.splitlines()
    assert header.split() == ["rank", "score", "name", "title", "text"]
    assert row.split()[0] == "1" and row.split()[2] == "cat"
    assert row.strip().endswith("a cat sees the dog") and found.err == ""


def test_json_tells_all(lmlab, made: Path):
    found = lmlab("index", "search", made / "dense", "the dog sleeps", "mary walks", "--json")
    first, second = json.loads(found.out)
    assert (first["question"], second["question"]) == ("the dog sleeps", "mary walks")
    # Five are asked for, and there are three: all of them, the best first.
    assert [hit["rank"] for hit in first["found"]] == [1, 2, 3]
    scores = [hit["score"] for hit in first["found"]]
    assert scores == sorted(scores, reverse=True)
    assert {hit["name"] for hit in first["found"]} == {"dog", "cat", "mary"}
    [dog] = [hit for hit in first["found"] if hit["name"] == "dog"]
    assert (dog["title"], dog["text"], dog["number"]) == ("Dogs", "the dog sleeps", 0)


def test_several_texts_are_told_apart(lmlab, made: Path):
    found = lmlab("index", "search", made / "words", "cat", "nothing")
    assert found.out.startswith("cat\n\nrank") and "\nnothing\n\nnothing was found" in found.out


def test_info_tells_what_it_was_built_with(lmlab, made: Path):
    found = lmlab("index", "info", made / "dense")
    assert "3 documents, flat" in found.out
    assert f"encoder: bert ({(made / 'bert').resolve()}), vectors of width" in found.out
    told = json.loads(lmlab("index", "info", made / "words", "--json").out)
    assert (told["kind"], told["documents"], told["encoder"]) == ("bm25", 3, None)


def test_a_question_longer_than_the_window_is_cut_and_said_so(lmlab, made: Path):
    window = load_run(made / "bert").system.window
    found = lmlab("index", "search", made / "dense", "dog " * (window + 5), "-k", 1)
    assert found.code == 0
    assert f"1 of 1 texts exceeded the encoder's window of {window + 1} tokens" in found.err


def test_an_encoder_that_has_moved_is_asked_for(lmlab, made: Path, tmp_path: Path):
    moved, index = tmp_path / "moved", tmp_path / "index"
    (made / "bert").rename(moved)
    try:
        lost = lmlab("index", "search", made / "dense", "dog")
        assert lost.code == 2 and "give its path with --encoder" in lost.err
        found = lmlab("index", "search", made / "dense", "dog", "--encoder", moved, "-k", 1)
        assert found.code == 0 and "1 " in found.out
    finally:
        moved.rename(made / "bert")
    assert not index.exists()


def test_another_encoder_is_refused(lmlab, made: Path, tmp_path: Path):
    budget = ("--size", "tiny", "--steps", 1, "--data", "grammar", "--seed", 1)
    assert lmlab("train", "bert", *budget, "--out", tmp_path / "other").code == 0
    found = lmlab("index", "search", made / "dense", "dog", "--encoder", tmp_path / "other")
    assert found.code == 2 and "was built with another encoder" in found.err


def test_an_approximate_index_says_what_it_finds(lmlab, made: Path, tmp_path: Path):
    pytest.importorskip("faiss")
    built = ("--encoder", made / "bert", "--out", tmp_path / "i", "--kind", "hnsw")
    found = lmlab("index", "build", made / "docs.jsonl", *built)
    assert found.code == 0 and "recall: 100.0% of the ten nearest" in found.out
    assert "were asked for" not in found.err


def test_an_approximate_index_says_where_the_recall_was_not_reached(
    lmlab, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("faiss")
    monkeypatch.setattr("lmlab.retrieval.faiss_index.recall_at_k", lambda found, truth: 0.9)
    built = ("--encoder", made / "bert", "--out", tmp_path / "i", "--kind", "hnsw")
    found = lmlab("index", "build", made / "docs.jsonl", *built)
    assert found.code == 0 and "recall: 90.0% of the ten nearest" in found.out
    assert "hnsw finds 90.0% of the ten nearest" in found.err
    assert "95.0% were asked for; --kind flat finds all." in found.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("search", "words", "dog", "-k", 0), "k must be from 1 to the 3 documents"),
        (("search", "words", "dog", "-k", 4), "got 4"),
        (("search", "words", ""), "holds no text, only 1 empty text"),
        (("search", "bert", "dog"), "is not an index: it has no meta.json"),
        (("search", "nowhere", "dog"), "there is no index at"),
        (("info", "docs.jsonl"), "there is no index at"),
        (("build", "docs.jsonl", "--encoder", "nowhere", "--out", "new"), "there is no run at"),
        (("build", "nowhere", "--encoder", "bm25", "--out", "new"), "no set of documents"),
        (("build", "docs.jsonl", "--encoder", "bm25", "--out", "dense"), "is not empty"),
        (
            ("build", "docs.jsonl", "--encoder", "bm25", "--out", "new", "--kind", "flt"),
            "did you mean 'flat'",
        ),
    ],
)
def test_a_mistake_is_one_sentence(
    lmlab, made: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...], sentence: str
):
    monkeypatch.chdir(made)
    found = lmlab("index", *arguments)
    assert found.code == 2 and found.out == ""
    assert found.err.startswith("lmlab: ") and found.err.count("\n") == 1
    assert sentence in found.err
    assert not (made / "new").exists()


def test_one_document_is_one_and_little_is_not_nothing(lmlab, tmp_path: Path):
    (tmp_path / "one.txt").write_text("a dog\n", encoding="utf-8")
    found = lmlab(
        "index", "build", tmp_path / "one.txt", "--encoder", "bm25", "--out", tmp_path / "i"
    )
    assert ": 1 document, bm25, " in found.out and " KiB on the disk" in found.out
    assert (format_size(2**10), format_size(3 * 2**20)) == ("1.0 KiB", "3.0 MiB")


def test_long_texts_are_shown_short():
    assert shorten_text("a  b\nc", 10) == "a b c"
    assert shorten_text("one two three four", 12) == "one two …"
    assert shorten_text("x" * 30, 10) == "x" * 9 + "…"


def test_rows_that_are_left_out_are_counted(lmlab, tmp_path: Path):
    lines = ['{"text": "a dog"}', "[]", '{"text": ""}', '{"text": "a cat"}']
    (tmp_path / "docs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    out = ("--encoder", "bm25", "--out", tmp_path / "index", "--errors", "replace")
    found = lmlab("index", "build", tmp_path / "docs.jsonl", *out)
    assert found.code == 0 and "2 documents" in found.out
    assert "2 bad rows skipped" in found.err


def test_words_are_searched_without_an_encoder(lmlab, made: Path):
    found = lmlab("index", "search", made / "words", "cat", "--encoder", made / "bert")
    assert found.code == 2 and "searched by words (bm25)" in found.err and found.out == ""
