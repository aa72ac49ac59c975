"""Sentences on capitals ranked by a masked model that learns them in some seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

import lmlab

PAIRS = [
    ("中国的首都是北京", "中国的首都是上海"),
    ("中国的首都是北京", "中国的首都是巴黎"),
    ("法国的首都是巴黎", "法本的首都是巴京"),
    ("日本的首都是东京", "日本的首都是大阪"),
    ("日本的首都是东京", "日本的首都是上海"),
    ("日本的首都是东京", "法本的首都是巴京"),
    ("韩国的首都是首尔", "韩国的首都是上海"),
    ("韩国的首都是首尔", "上海的首都是上海"),
]
"""A true sentence, and a false variant of it."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> lmlab.LanguageModel:
    out = tmp_path_factory.mktemp("runs") / "bert"
    settings = {
        "width": 32,
        "layers": 2,
        "heads": 2,
        "length": 32,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "pairs": "none",
        "segments": 0,
        "masking": "dynamic",
        "rate": 0.3,
        "learning_rate": 6e-3,
        "schedule": "cosine",
        "warmup_steps": 50,
        "tokens_per_batch": 512,
    }
    lmlab.train("bert", data="capitals", out=out, settings=settings, epochs=6, quiet=True)
    return lmlab.load(Path(out))


@pytest.mark.parametrize("method", ["raw", "norm"])
def test_pll_ranks_true_capital_sentences_higher(model: lmlab.LanguageModel, method: str) -> None:
    texts = sorted({text for pair in PAIRS for text in pair})
    scores = model.score(texts, method=method, mean=True)
    totals = {each.text: each.total for each in scores}
    assert [pair for pair in PAIRS if totals[pair[0]] <= totals[pair[1]]] == []
    assert {each.kind for each in scores} == {"unnormalised" if method == "raw" else "pseudo"}
