"""Maximum length ratio: training pairs above it are dropped and counted."""

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


def test_pairs_above_the_length_ratio_are_dropped_and_counted(pairs: Path):
    """2 : 2 words are kept; 2 : 34 letters (one-word sides count letters) and 4 : 1 are dropped."""
    corpus = filter_by_length_ratio(open_corpus(str(pairs)), 3)
    train = corpus.splits["train"]
    assert [example.text for example in train] == ["a dog", "one"]
    assert train.report.uneven_pairs == 2
    assert "2 pairs of too uneven lengths dropped" in train.report.summary()
    assert len(list(corpus.splits["test"])) == 4


def test_length_ratio_changes_the_fingerprint(pairs: Path):
    corpus = open_corpus(str(pairs))
    fingerprints = {filter_by_length_ratio(corpus, max_ratio).fingerprint() for max_ratio in (2, 3)}
    assert len(fingerprints | {corpus.fingerprint()}) == 3


def test_length_ratio_needs_pairs(tmp_path: Path):
    (tmp_path / "a.txt").write_text("some text\n" * 20)
    with pytest.raises(UserError, match=r"does not apply to .* single texts"):
        filter_by_length_ratio(open_corpus(str(tmp_path / "a.txt")), 3)
