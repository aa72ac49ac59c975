"""`lmlab index`: build, search and info of dense and BM25 indexes; errors in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lmlab.cli.index import format_size, shorten_text
from lmlab.cli.main import main
from lmlab.training.run_folder import load_run

pytest.importorskip("bm25s")
pytestmark = pytest.mark.xdist_group("cli-index")  # shares one run and its indexes
ROWS = (
    {"text": "the dog sleeps", "name": "dog", "title": "Dogs"},
    {"text": "a cat sees the dog", "name": "cat"},
    {"text": "mary walks", "name": "mary"},
)


@pytest.fixture(scope="module")
def index_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder, three documents, and a dense and a BM25 index of them."""
    folder = tmp_path_factory.mktemp("index")
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    (folder / "docs.jsonl").write_text(lines, encoding="utf-8")
    budget = ("--size", "tiny", "--steps", "2", "--data", "grammar", "--out", str(folder / "bert"))
    assert main(["train", "bert", *budget]) == 0
    for name, encoder in (("dense", str(folder / "bert")), ("words", "bm25")):
        out = ("--encoder", encoder, "--out", str(folder / name))
        assert main(["index", "build", str(folder / "docs.jsonl"), *out]) == 0
    return folder


def test_bm25_index_is_searched(lmlab, index_folder: Path):
    result = lmlab("index", "search", index_folder / "words", "Cat!", "-k", 2)
    header, row = result.out.splitlines()
    assert header.split() == ["rank", "score", "name", "title", "text"]
    assert row.split()[0] == "1" and row.split()[2] == "cat"
    assert row.strip().endswith("a cat sees the dog") and result.err == ""


def test_json_has_ranked_hits_per_question(lmlab, index_folder: Path):
    result = lmlab(
        "index", "search", index_folder / "dense", "the dog sleeps", "mary walks", "--json"
    )
    first, second = json.loads(result.out)
    assert (first["question"], second["question"]) == ("the dog sleeps", "mary walks")
    # The default k is 5, and there are three documents: all of them, best first.
    assert [hit["rank"] for hit in first["found"]] == [1, 2, 3]
    scores = [hit["score"] for hit in first["found"]]
    assert scores == sorted(scores, reverse=True)
    assert {hit["name"] for hit in first["found"]} == {"dog", "cat", "mary"}
    [dog] = [hit for hit in first["found"] if hit["name"] == "dog"]
    assert (dog["title"], dog["text"], dog["number"]) == ("Dogs", "the dog sleeps", 0)


def test_results_of_several_queries_are_labelled(lmlab, index_folder: Path):
    result = lmlab("index", "search", index_folder / "words", "cat", "nothing")
    assert result.out.startswith("cat\n\nrank") and "\nnothing\n\nnothing was found" in result.out


def test_info_reports_kind_size_and_encoder(lmlab, index_folder: Path):
    result = lmlab("index", "info", index_folder / "dense")
    assert "3 documents, flat" in result.out
    assert f"encoder: bert ({(index_folder / 'bert').resolve()}), vectors of width" in result.out
    output = json.loads(lmlab("index", "info", index_folder / "words", "--json").out)
    assert (output["kind"], output["documents"], output["encoder"]) == ("bm25", 3, None)


def test_query_over_the_window_is_truncated_with_warning(lmlab, index_folder: Path):
    window = load_run(index_folder / "bert").system.window
    result = lmlab("index", "search", index_folder / "dense", "dog " * (window + 5), "-k", 1)
    assert result.code == 0
    assert f"1 of 1 texts exceeded the encoder's window of {window + 1} tokens" in result.err


def test_moved_encoder_is_given_by_option(lmlab, index_folder: Path, tmp_path: Path):
    moved, index = tmp_path / "moved", tmp_path / "index"
    (index_folder / "bert").rename(moved)
    try:
        lost = lmlab("index", "search", index_folder / "dense", "dog")
        assert lost.code == 2 and "give its path with --encoder" in lost.err
        result = lmlab(
            "index", "search", index_folder / "dense", "dog", "--encoder", moved, "-k", 1
        )
        assert result.code == 0 and "1 " in result.out
    finally:
        moved.rename(index_folder / "bert")
    assert not index.exists()


def test_different_encoder_is_refused(lmlab, index_folder: Path, tmp_path: Path):
    budget = ("--size", "tiny", "--steps", 1, "--data", "grammar", "--seed", 1)
    assert lmlab("train", "bert", *budget, "--out", tmp_path / "other").code == 0
    result = lmlab(
        "index", "search", index_folder / "dense", "dog", "--encoder", tmp_path / "other"
    )
    assert result.code == 2 and "was built with another encoder" in result.err


def test_hnsw_build_reports_recall(lmlab, index_folder: Path, tmp_path: Path):
    pytest.importorskip("faiss")
    options = ("--encoder", index_folder / "bert", "--out", tmp_path / "i", "--kind", "hnsw")
    result = lmlab("index", "build", index_folder / "docs.jsonl", *options)
    assert result.code == 0 and "recall: 100.0% of the ten nearest" in result.out
    assert "were asked for" not in result.err


def test_hnsw_build_warns_of_recall_below_target(
    lmlab, index_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("faiss")
    monkeypatch.setattr("lmlab.retrieval.faiss_index.recall_at_k", lambda result, truth: 0.9)
    options = ("--encoder", index_folder / "bert", "--out", tmp_path / "i", "--kind", "hnsw")
    result = lmlab("index", "build", index_folder / "docs.jsonl", *options)
    assert result.code == 0 and "recall: 90.0% of the ten nearest" in result.out
    assert "hnsw finds 90.0% of the ten nearest" in result.err
    assert "95.0% were asked for; --kind flat finds all." in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
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
def test_usage_errors_are_one_sentence(
    lmlab,
    index_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[object, ...],
    message: str,
):
    monkeypatch.chdir(index_folder)
    result = lmlab("index", *arguments)
    assert result.code == 2 and result.out == ""
    assert result.err.startswith("lmlab: ") and result.err.count("\n") == 1
    assert message in result.err
    assert not (index_folder / "new").exists()


def test_singular_document_count_and_small_sizes(lmlab, tmp_path: Path):
    (tmp_path / "one.txt").write_text("a dog\n", encoding="utf-8")
    result = lmlab(
        "index", "build", tmp_path / "one.txt", "--encoder", "bm25", "--out", tmp_path / "i"
    )
    assert ": 1 document, bm25, " in result.out and " KiB on the disk" in result.out
    assert (format_size(2**10), format_size(3 * 2**20)) == ("1.0 KiB", "3.0 MiB")


def test_long_texts_are_shortened():
    assert shorten_text("a  b\nc", 10) == "a b c"
    assert shorten_text("one two three four", 12) == "one two …"
    assert shorten_text("x" * 30, 10) == "x" * 9 + "…"


def test_skipped_rows_are_counted(lmlab, tmp_path: Path):
    lines = ['{"text": "a dog"}', "[]", '{"text": ""}', '{"text": "a cat"}']
    (tmp_path / "docs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    out = ("--encoder", "bm25", "--out", tmp_path / "index", "--errors", "replace")
    result = lmlab("index", "build", tmp_path / "docs.jsonl", *out)
    assert result.code == 0 and "2 documents" in result.out
    assert "2 bad rows skipped" in result.err


def test_bm25_index_refuses_an_encoder(lmlab, index_folder: Path):
    result = lmlab(
        "index", "search", index_folder / "words", "cat", "--encoder", index_folder / "bert"
    )
    assert result.code == 2 and "searched by words (bm25)" in result.err and result.out == ""
