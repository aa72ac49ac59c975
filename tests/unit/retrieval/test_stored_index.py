"""Stored index: building with any encoder, opening, searching and errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lmlab.core.errors import UserError
from lmlab.retrieval.documents import Document, Documents, load_documents
from lmlab.retrieval.retrieval_encoder import EncoderDescription
from lmlab.retrieval.stored_index import build_index, open_index

TEXTS = ("abba", "cab", "dad fed a bee", "zebra", "baba black sheep")
DOCUMENTS = Documents(Document(name=f"n{i}", text=text) for i, text in enumerate(TEXTS))


class LetterCountEncoder:
    """Letter counts up to the window; counts of queries are doubled."""

    def __init__(self, width: int = 26, fingerprint: str = "f", window: int | None = None) -> None:
        self.width, self.window, self.truncated = width, window, 0
        self.description = EncoderDescription(name="letters", path="", fingerprint=fingerprint)
        self.batches: list[int] = []

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        self.batches.append(len(texts))
        self.truncated += sum(self.window is not None and len(text) > self.window for text in texts)
        rows = [
            [text[: self.window].count(chr(97 + i)) for i in range(self.width)] for text in texts
        ]
        return np.array(rows, dtype=np.float32).reshape(len(texts), self.width)

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        return 2 * self.encode_documents(texts)


def test_built_index_can_be_opened_and_searched(tmp_path: Path):
    progress: list[tuple[str, int, int]] = []
    encoder = LetterCountEncoder()
    built = build_index(
        DOCUMENTS, encoder, tmp_path / "i", batch=2, progress=lambda *event: progress.append(event)
    )
    assert progress == [("encoding", 2, 5), ("encoding", 4, 5), ("encoding", 5, 5)]
    assert encoder.batches == [2, 2, 1]
    for index in (built, open_index(tmp_path / "i", encoder=LetterCountEncoder())):
        assert (len(index), index.about.kind, index.about.width) == (5, "flat", 26)
        assert index.about.fingerprint == DOCUMENTS.fingerprint()
        first, second = index.search(["b", "ze"], k=3)
        # 2 · 1 · the number of b's: 3 in "baba black", 2 in "abba", and 1 in three others.
        assert [(hit.document.name, hit.score) for hit in first[:2]] == [("n4", 6), ("n0", 4)]
        assert [hit.score for hit in first] == [6, 4, 2]
        # 2 · (z + e): "dad fed a bee" has three e's, "zebra" one and a z, "sheep" two e's.
        assert [hit.score for hit in second] == [6, 4, 4] and second[0].document == DOCUMENTS[2]
        assert all(DOCUMENTS[hit.number] == hit.document for hit in first + second)


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_all_index_kinds_agree_on_a_small_set(tmp_path: Path, kind: str):
    pytest.importorskip("faiss")
    index = build_index(DOCUMENTS, LetterCountEncoder(), tmp_path / "i", kind=kind)
    files = {path.name for path in (tmp_path / "i").iterdir()}
    expected = {"meta.json", "documents.jsonl.gz", "vectors.npy", "manifest.json"}
    assert files == expected | ({"index.faiss"} if kind != "flat" else set())
    assert [hit.score for hit in index.search(["b"], k=2)[0]] == [6, 4]
    assert index.about.recall == 1


def test_bm25_index_without_an_encoder(tmp_path: Path):
    pytest.importorskip("bm25s")
    build_index(DOCUMENTS, None, tmp_path / "i")
    index = open_index(tmp_path / "i")
    assert (index.about.kind, index.about.width, index.about.encoder) == ("bm25", None, None)
    [[hit], none] = index.search(["Zebra", "unknown"], k=2)
    assert hit.document == DOCUMENTS[3] and hit.score > 0 and none == []


def test_titles_are_encoded_unless_the_text_begins_with_them(tmp_path: Path):
    text = Document(name="n", title="lima", text="a city in peru")
    begins = replace(text, name="b", text="lima is a city")
    index = build_index(Documents([text, begins]), LetterCountEncoder(), tmp_path / "i")
    # 2 · the number of l's: one in "lima : a city in peru", and one in "lima is a city".
    assert [hit.score for hit in index.search(["l"], k=2)[0]] == [2, 2]


def test_documents_can_be_loaded_from_an_index(tmp_path: Path):
    build_index(DOCUMENTS, LetterCountEncoder(), tmp_path / "i")
    assert list(load_documents(tmp_path / "i")) == list(DOCUMENTS)


def test_truncated_texts_are_counted(tmp_path: Path):
    # Of the five texts two have more than five letters.
    index = build_index(DOCUMENTS, LetterCountEncoder(window=5), tmp_path / "i")
    assert index.about.truncated == 2 and index.cut == 0
    index.search(["short", "much longer"], k=1)
    index.search(["much longer"], k=1)
    assert index.cut == 2


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), RuntimeError("of the encoder")])
def test_failed_build_leaves_no_files(tmp_path: Path, failure: BaseException):
    class Stopped(LetterCountEncoder):
        def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
            if len(self.batches) == 1:
                raise failure
            return super().encode_documents(texts)

    with pytest.raises(type(failure)):
        build_index(DOCUMENTS, Stopped(), tmp_path / "i", batch=2)
    assert list(tmp_path.iterdir()) == []


def test_nonempty_folder_is_not_overwritten(tmp_path: Path):
    (tmp_path / "mine.txt").write_text("keep", encoding="utf-8")
    with pytest.raises(UserError, match="already exists and is not empty"):
        build_index(DOCUMENTS, LetterCountEncoder(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_mismatched_encoder_is_refused(tmp_path: Path):
    build_index(DOCUMENTS, LetterCountEncoder(), tmp_path / "i")
    with pytest.raises(UserError, match=r"vectors of width 26, got 5 from .*letters"):
        open_index(tmp_path / "i", encoder=LetterCountEncoder(width=5)).search(["a"], k=1)
    with pytest.raises(UserError, match="was built with another encoder"):
        open_index(tmp_path / "i", encoder=LetterCountEncoder(fingerprint="g")).search(["a"], k=1)
    with pytest.raises(UserError, match="needs its encoder"):
        open_index(tmp_path / "i").search(["a"], k=1)


def test_encoder_is_loaded_lazily_at_the_first_query(tmp_path: Path):
    build_index(DOCUMENTS, LetterCountEncoder(), tmp_path / "i")
    requested: list[Path] = []

    def find(path: Path, about: object) -> LetterCountEncoder:
        requested.append(path)
        return LetterCountEncoder()

    index = open_index(tmp_path / "i", find_encoder=find)
    assert len(index) == len(index.documents) == 5 and requested == []
    index.search(["a"], k=1)
    index.search(["b"], k=1)
    assert requested == [tmp_path / "i"]


def test_invalid_queries_are_refused(tmp_path: Path):
    index = build_index(DOCUMENTS, LetterCountEncoder(), tmp_path / "i")
    for k in (0, 6):
        with pytest.raises(UserError, match=f"k must be from 1 to the 5 documents .* got {k}"):
            index.search(["a"], k=k)
    with pytest.raises(UserError, match="a query is empty"):
        index.search(["a", "  "], k=1)
    with pytest.raises(UserError, match="put it in a list"):
        index.search("a", k=1)
    assert index.search([], k=1) == []


def test_invalid_build_settings_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match="batch must be at least 1, got 0"):
        build_index(DOCUMENTS, LetterCountEncoder(), tmp_path / "i", batch=0)
    with pytest.raises(UserError, match="no kind of index called 'hnws'; did you mean 'hnsw'"):
        build_index(DOCUMENTS, LetterCountEncoder(), tmp_path / "i", kind="hnws")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"kind ivf does not apply to a bm25 index"):
        build_index(DOCUMENTS, None, tmp_path / "i", kind="ivf")
    assert list(tmp_path.iterdir()) == []


def test_missing_or_truncated_index_file_is_refused(tmp_path: Path):
    built = tmp_path / "i"
    build_index(DOCUMENTS, LetterCountEncoder(), built)
    for name in ("documents.jsonl.gz", "vectors.npy"):
        other = tmp_path / f"without-{name}"
        shutil.copytree(built, other)
        (other / name).write_bytes((other / name).read_bytes()[:-1])
        with pytest.raises(UserError, match=f"{name} is missing, damaged or cut short"):
            open_index(other)
        (other / name).unlink()
        with pytest.raises(UserError, match=f"{name} is missing, damaged or cut short"):
            open_index(other)


def test_folder_without_an_index_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="there is no index at"):
        open_index(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"is not an index: it has no meta\.json"):
        open_index(tmp_path)
    meta = tmp_path / "meta.json"
    for text in ("{", "[]", "{}", '{"format": "x"}', '{"format": 1, "kind": "flat"}'):
        meta.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=r"meta\.json does not describe an index"):
            open_index(tmp_path)
    meta.write_text(json.dumps({"format": 4, "lmlab": "9.9"}), encoding="utf-8")
    with pytest.raises(UserError, match=r"written by a later lmlab \(9\.9, format 4\)"):
        open_index(tmp_path)
