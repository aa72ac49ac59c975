"""Skip-gram on four sentences: after 我 comes 是 in two of three, 爆 in one, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.training.run_folder import load_run
from lmlab.training.train import train

SENTENCES = ("我是人", "你很强", "我爆零了", "我是吊打")
ROUNDS = 20
"""How often the four occur in the file, so that an epoch is some steps long."""

FITTERS: dict[str, tuple[int, dict[str, Any]]] = {
    "words": (1000, {"learning_rate": 0.3, "tokens_per_batch": 1000}),
    "gradient": (
        250,
        {"fitting": "gradient", "learning_rate": 0.1, "tokens_per_batch": 1000, "grad_clip": 0.0},
    ),
    "softmax": (
        150,
        {"objective": "softmax", "learning_rate": 0.1, "tokens_per_batch": 1000, "grad_clip": 0.0},
    ),
}
"""Epochs and settings of each fitter."""


@pytest.mark.parametrize("fitter", FITTERS)
def test_skip_gram_matches_corpus_frequencies(tmp_path: Path, fitter: str):
    """Window 1, so that a pair is two neighbours; 我 starts its sentence, and has one only.

    The full softmax and noise-contrastive estimation, for any noise, end at p(w | 我) = 2/3, 1/3;
    what is left of the words that never come shrinks with training, and 0.03 bounds both it and the
    noise of the steps.
    """
    corpus = tmp_path / "four"
    corpus.mkdir()
    for split, rounds in (("train", ROUNDS), ("valid", 1)):  # or the one file would be divided
        text = "\n".join([*SENTENCES] * rounds) + "\n"
        (corpus / f"{split}.txt").write_text(text, encoding="utf-8")
    settings = {"width": 16, "window": 1, "sample": 0.0, "negatives": 10, "min_count": 1}
    epochs, fitter_settings = FITTERS[fitter]
    run = train(
        "skipgram",
        data=str(corpus),
        out=tmp_path / "run",
        tokenizer="char",
        settings=settings | fitter_settings | {"evaluate_every": 10**6},
        epochs=epochs,
        quiet=True,
    )
    model = load_run(run.path)
    vocabulary, tokenizer = model.tokenizer.vocabulary, model.tokenizer
    start, mask, end = vocabulary.start, vocabulary.mask, vocabulary.end
    assert start is not None and mask is not None and end is not None
    batch = Batch.collate([[start, *tokenizer.encode("我"), mask, end]], pad=vocabulary.pad)
    with torch.no_grad():
        masked = batch.tokens == mask
        result = model.system.fill(batch, masked).log_probs[0].exp()  # type: ignore[operator]
    assert result[tokenizer.encode("是")[0]].item() == pytest.approx(2 / 3, abs=0.03)
    assert result[tokenizer.encode("爆")[0]].item() == pytest.approx(1 / 3, abs=0.03)
