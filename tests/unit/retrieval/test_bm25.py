"""BM25 index: tokenization, search, saving and errors."""

from __future__ import annotations

import builtins
from pathlib import Path

import numpy as np
import pytest

from lmlab.core.errors import UserError
from lmlab.retrieval.bm25 import LexicalIndex, tokenize_words

pytest.importorskip("bm25s")

TEXTS = ("the cat sat", "a dog sat on the mat", "birds sing", "中国的首都是北京")


def test_tokenize_words_lowercases_and_splits_ideographs():
    assert tokenize_words("The Café's 2nd-best, x_y!") == [
        "the",
        "café",
        "s",
        "2nd",
        "best",
        "x",
        "y",
    ]
    assert tokenize_words("在Python里 ok") == ["在", "python", "里", "ok"]
    assert tokenize_words(" …!") == []


def test_documents_without_shared_words_are_not_returned():
    scores, numbers = LexicalIndex.build(TEXTS).search(["SAT on", "nothing known", "北"], 3)
    assert numbers.tolist() == [[1, 0, -1], [-1, -1, -1], [3, -1, -1]]
    assert (scores[0, :2] > 0).all() and scores[0, 0] > scores[0, 1]
    assert (scores[numbers < 0] == -np.inf).all()


def test_ties_are_broken_by_document_number():
    _, numbers = LexicalIndex.build(["x a", "x b", "x c", "y"]).search(["x"], 2)
    assert numbers.tolist() == [[0, 1]]


@pytest.mark.parametrize("mapped", [True, False])
def test_bm25_save_and_load_round_trip(tmp_path: Path, mapped: bool):
    index = LexicalIndex.build(TEXTS)
    index.save(tmp_path / "bm25")
    loaded = LexicalIndex.load(tmp_path / "bm25", mapped=mapped)
    assert loaded.size == 4
    queries = ["the cat", "dog mat", "国"]
    for ours, theirs in zip(index.search(queries, 4), loaded.search(queries, 4), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_missing_or_truncated_bm25_file_is_refused(tmp_path: Path):
    LexicalIndex.build(TEXTS).save(tmp_path)
    for path in sorted(tmp_path.iterdir()):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(UserError, match="damaged or cut short"):
            LexicalIndex.load(tmp_path)
        path.unlink()
        with pytest.raises(UserError, match="damaged or cut short"):
            LexicalIndex.load(tmp_path)
        path.write_bytes(content)
    assert LexicalIndex.load(tmp_path).size == 4


def test_invalid_bm25_arguments_are_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match="BM25 needs words"):
        LexicalIndex.build(["...", "!"])
    with pytest.raises(UserError, match="k must be at least 1"):
        LexicalIndex.build(TEXTS).search(["cat"], 0)
    real = builtins.__import__

    def refuse(name: str, *arguments: object, **keywords: object) -> object:
        if name == "bm25s":
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UserError, match=r"needs bm25s.*lmlab\[retrieval\]"):
        LexicalIndex.build(TEXTS)
