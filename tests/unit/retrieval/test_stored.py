"""An index in a folder: built by any encoder, opened, searched, refused where it does not fit."""

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


class Letters:
    """Counts of letters, those beyond the window cut; a question's count twice."""

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


def test_what_is_built_is_opened_and_searched(tmp_path: Path):
    told: list[tuple[str, int, int]] = []
    encoder = Letters()
    built = build_index(
        DOCUMENTS, encoder, tmp_path / "i", batch=2, progress=lambda *each: told.append(each)
    )
    assert told == [("encoding", 2, 5), ("encoding", 4, 5), ("encoding", 5, 5)]
    assert encoder.batches == [2, 2, 1]
    for index in (built, open_index(tmp_path / "i", encoder=Letters())):
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
def test_every_kind_finds_the_same_in_a_small_set(tmp_path: Path, kind: str):
    pytest.importorskip("faiss")
    index = build_index(DOCUMENTS, Letters(), tmp_path / "i", kind=kind)
    files = {path.name for path in (tmp_path / "i").iterdir()}
    wanted = {"meta.json", "documents.jsonl.gz", "vectors.npy", "manifest.json"}
    assert files == wanted | ({"index.faiss"} if kind != "flat" else set())
    assert [hit.score for hit in index.search(["b"], k=2)[0]] == [6, 4]
    assert index.about.recall == 1


def test_words_instead_of_an_encoder(tmp_path: Path):
    pytest.importorskip("bm25s")
    build_index(DOCUMENTS, None, tmp_path / "i")
    index = open_index(tmp_path / "i")
    assert (index.about.kind, index.about.width, index.about.encoder) == ("bm25", None, None)
    [[hit], none] = index.search(["Zebra", "unknown"], k=2)
    assert hit.document == DOCUMENTS[3] and hit.score > 0 and none == []


def test_a_title_is_looked_at_unless_the_text_begins_with_it(tmp_path: Path):
    text = Document(name="n", title="lima", text="a city in peru")
    begins = replace(text, name="b", text="lima is a city")
    index = build_index(Documents([text, begins]), Letters(), tmp_path / "i")
    # 2 · the number of l's: one in "lima : a city in peru", and one in "lima is a city".
    assert [hit.score for hit in index.search(["l"], k=2)[0]] == [2, 2]


def test_documents_of_an_index_are_documents(tmp_path: Path):
    build_index(DOCUMENTS, Letters(), tmp_path / "i")
    assert list(load_documents(tmp_path / "i")) == list(DOCUMENTS)


def test_what_was_cut_is_counted(tmp_path: Path):
    # Of the five texts two have more than five letters.
    index = build_index(DOCUMENTS, Letters(window=5), tmp_path / "i")
    assert index.about.truncated == 2 and index.cut == 0
    index.search(["short", "much longer"], k=1)
    index.search(["much longer"], k=1)
    assert index.cut == 2


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), RuntimeError("of the encoder")])
def test_nothing_half_is_left(tmp_path: Path, failure: BaseException):
    class Stopped(Letters):
        def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
            if len(self.batches) == 1:
                raise failure
            return super().encode_documents(texts)

    with pytest.raises(type(failure)):
        build_index(DOCUMENTS, Stopped(), tmp_path / "i", batch=2)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_not_written_over(tmp_path: Path):
    (tmp_path / "mine.txt").write_text("keep", encoding="utf-8")
    with pytest.raises(UserError, match="already exists and is not empty"):
        build_index(DOCUMENTS, Letters(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_another_encoder_is_refused(tmp_path: Path):
    build_index(DOCUMENTS, Letters(), tmp_path / "i")
    with pytest.raises(UserError, match=r"vectors of width 26, got 5 from .*letters"):
        open_index(tmp_path / "i", encoder=Letters(width=5)).search(["a"], k=1)
    with pytest.raises(UserError, match="was built with another encoder"):
        open_index(tmp_path / "i", encoder=Letters(fingerprint="g")).search(["a"], k=1)
    with pytest.raises(UserError, match="needs its encoder"):
        open_index(tmp_path / "i").search(["a"], k=1)


def test_an_encoder_is_asked_for_only_when_a_question_comes(tmp_path: Path):
    build_index(DOCUMENTS, Letters(), tmp_path / "i")
    asked: list[Path] = []

    def find(path: Path, about: object) -> Letters:
        asked.append(path)
        return Letters()

    index = open_index(tmp_path / "i", find_encoder=find)
    assert len(index) == len(index.documents) == 5 and asked == []
    index.search(["a"], k=1)
    index.search(["b"], k=1)
    assert asked == [tmp_path / "i"]


def test_bad_questions_are_told(tmp_path: Path):
    index = build_index(DOCUMENTS, Letters(), tmp_path / "i")
    for k in (0, 6):
        with pytest.raises(UserError, match=f"k must be from 1 to the 5 documents .* got {k}"):
            index.search(["a"], k=k)
    with pytest.raises(UserError, match="a query is empty"):
        index.search(["a", "  "], k=1)
    with pytest.raises(UserError, match="put it in a list"):
        index.search("a", k=1)
    assert index.search([], k=1) == []


def test_bad_settings_are_told(tmp_path: Path):
    with pytest.raises(UserError, match="batch must be at least 1, got 0"):
        build_index(DOCUMENTS, Letters(), tmp_path / "i", batch=0)
    with pytest.raises(UserError, match="no kind of index called 'hnws'; did you mean 'hnsw'"):
        build_index(DOCUMENTS, Letters(), tmp_path / "i", kind="hnws")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"kind ivf does not apply to a bm25 index"):
        build_index(DOCUMENTS, None, tmp_path / "i", kind="ivf")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_lost_or_cut_short_is_named(tmp_path: Path):
    built = tmp_path / "i"
    build_index(DOCUMENTS, Letters(), built)
    for name in ("documents.jsonl.gz", "vectors.npy"):
        other = tmp_path / f"without-{name}"
        shutil.copytree(built, other)
        (other / name).write_bytes((other / name).read_bytes()[:-1])
        with pytest.raises(UserError, match=f"{name} is missing, damaged or cut short"):
            open_index(other)
        (other / name).unlink()
        with pytest.raises(UserError, match=f"{name} is missing, damaged or cut short"):
            open_index(other)


def test_what_is_no_index_is_told(tmp_path: Path):
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
