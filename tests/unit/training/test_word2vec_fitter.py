"""The word2vec fitter: streaming, reproducible, with the gradient loop as a fallback."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmlab.core.tensor_files import read_tensors
from lmlab.training.run_folder import RunFolder, load_run
from lmlab.training.train import TrainingResult, train

needs_numba = pytest.mark.skipif(
    importlib.util.find_spec("numba") is None, reason="compiled code needs numba"
)


def topics(path: Path, lines: int = 400) -> Path:
    """Sentences about one of three topics of six words each: t0w0 … t2w5."""
    generator = np.random.default_rng(0)
    rows = [
        " ".join(f"t{topic}w{word}" for word in generator.integers(0, 6, 8))
        for topic in generator.integers(0, 3, lines)
    ]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def fit(tmp_path: Path, name: str, out: str, **settings: Any) -> TrainingResult:
    corpus = topics(tmp_path / "topics.txt")
    options = {"width": 12, "window": 2, "sample": 0.0, "tokens_per_batch": 500, **settings}
    epochs = options.pop("epochs", 40)
    return train(
        name, data=str(corpus), out=tmp_path / out, settings=options, epochs=epochs, quiet=True
    )


def cosines(run: TrainingResult) -> tuple[float, float]:
    """Mean cosine of word vectors within a topic, and between topics."""
    model = load_run(run.path)
    names = [f"t{topic}w{word}" for topic in range(3) for word in range(6)]
    ids = [model.tokenizer.id(name) for name in names]
    vectors = torch.nn.functional.normalize(model.system.vectors()[ids], dim=-1)  # type: ignore[operator]
    same = torch.block_diag(*[torch.ones(6, 6)] * 3).bool()
    products = (vectors @ vectors.T).detach()
    return products[same].mean().item(), products[~same].mean().item()


@needs_numba
@pytest.mark.parametrize(
    "settings",
    [{}, {"context": "sum", "learning_rate": 0.02}, {"context": "product"}, {"threads": 2}],
    ids=["mean", "sum", "product", "threads"],
)
def test_topic_words_have_similar_vectors(tmp_path: Path, settings: dict[str, Any]):
    run = fit(tmp_path, "cbow", "run", **settings)
    within, between = cosines(run)
    assert within > between + 0.5


@needs_numba
def test_reported_loss_falls_from_the_chance_level(tmp_path: Path):
    """Six binary decisions, a word and five noise words, cost 6 ln 2 at chance."""
    run = fit(tmp_path, "cbow", "run", epochs=10)
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["event"] == "train"]
    assert losses[0] == pytest.approx(6 * np.log(2), abs=0.05)
    assert losses[-1] < losses[0] - 0.5


@needs_numba
def test_single_thread_training_is_deterministic(tmp_path: Path):
    first, second = (fit(tmp_path, "skipgram", out, epochs=2) for out in "ab")
    ours, theirs = (read_tensors(run.path / "model.safetensors") for run in (first, second))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    other = fit(tmp_path, "skipgram", "c", epochs=2, seed=1)
    changed = read_tensors(other.path / "model.safetensors")["emission.inputs"]
    assert not torch.equal(changed, ours["emission.inputs"])


def test_gradient_loop_is_used_without_numba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == "numba" else find_spec(name),
    )
    within, between = cosines(fit(tmp_path, "cbow", "run", epochs=6))
    assert within > between + 0.25


@needs_numba
def test_diverging_learning_rate_is_reported(tmp_path: Path):
    from lmlab.core.errors import UserError

    with pytest.raises(UserError, match=r"not finite at step \d+.*learning_rate below 1e\+06"):
        fit(tmp_path, "cbow", "run", learning_rate=1e6, context="sum")


@needs_numba
def test_memory_mapped_text_is_read_in_shuffled_chunks(tmp_path: Path):
    """Every chunk comes once per epoch, in another order in the next."""
    from lmlab.core.registry import system_module
    from lmlab.core.vocabulary import Vocabulary
    from lmlab.training.word2vec_fitter import TextChunks

    ids = np.memmap(tmp_path / "ids", dtype=np.uint16, mode="w+", shape=(1050,))
    ids[:] = np.random.default_rng(0).integers(5, 9, 1050)
    module = system_module("skipgram")
    system = module.build(module.SIZES["tiny"], Vocabulary(size=9))
    chunks = TextChunks(system, ids, size=100, seed=3)
    assert chunks.per_epoch() == 11
    orders = [[chunks.chunk_index(epoch, at) for at in range(11)] for epoch in (0, 1, 0)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(11))
    assert orders[0] == orders[2] != orders[1]
    assert chunks.step(0, 10, 0.1).tokens == 50 and chunks.step(1, 4, 0.1).tokens == 100


@needs_numba
def test_time_budget_ends_with_a_resumable_checkpoint(tmp_path: Path):
    options: dict[str, Any] = {"data": str(topics(tmp_path / "topics.txt")), "quiet": True}
    settings = {"width": 12, "tokens_per_batch": 200, "threads": 2}
    first = train("cbow", out=tmp_path / "run", settings=settings, minutes=0.01, **options)
    assert first.reason == "budget" and first.steps > 0 and first.loss is not None
    checkpoint = RunFolder(first.path).load_checkpoint(print)
    assert checkpoint is not None and checkpoint.step == first.steps
    more = train("cbow", out=tmp_path / "run", steps=first.steps + 3, resume=True, **options)
    assert more.steps == first.steps + 3
