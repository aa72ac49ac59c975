"""Pairs of too uneven lengths are dropped from the training split and counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.data.corpus import open_corpus
from lmlab.data.length_ratio import filter_by_length_ratio

ROWS = ["ein hund\ta dog", "ja\tyes of course he said to her then", "ein\tone", "a b c d\te"]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    for name in ("train", "test"):
        (tmp_path / f"{name}.tsv").write_text("\n".join(ROWS) + "\n")
    return tmp_path


def test_they_are_dropped_and_counted(pairs: Path):
    """2 : 2 words stay; 2 : 34 letters (a side of one word is counted by letters) and 4 : 1 go."""
    corpus = filter_by_length_ratio(open_corpus(str(pairs)), 3)
    train = corpus.splits["train"]
    assert [example.text for example in train] == ["a dog", "one"]
    assert train.report.uneven_pairs == 2
    assert "2 pairs of too uneven lengths dropped" in train.report.summary()
    assert len(list(corpus.splits["test"])) == 4


def test_it_is_another_corpus(pairs: Path):
    corpus = open_corpus(str(pairs))
    fingerprints = {filter_by_length_ratio(corpus, most).fingerprint() for most in (2, 3)}
    assert len(fingerprints | {corpus.fingerprint()}) == 3


def test_single_texts_have_no_ratio(tmp_path: Path):
    (tmp_path / "a.txt").write_text("some text\n" * 20)
    with pytest.raises(UserError, match=r"does not apply to .* single texts"):
        filter_by_length_ratio(open_corpus(str(tmp_path / "a.txt")), 3)
