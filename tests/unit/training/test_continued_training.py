"""Continued training (`--base RUN` of the same system): weights, tokenizer, records, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import lmlab
from lmlab.core.errors import UserError
from lmlab.core.tensor_files import read_tensors
from lmlab.data.corpus import open_corpus
from lmlab.training.config import TrainingConfig
from lmlab.training.data_loaders import training_data
from lmlab.training.run_folder import load_run
from lmlab.training.train import train

FROZEN = {"optimizer": "sgd", "learning_rate": 1e-30, "weight_decay": 0.0}
"""Settings by which no weight changes: the update is lost in rounding."""


def write_corpus(folder: Path, letters: str) -> Path:
    folder.mkdir(parents=True)
    for split, count in {"train": 60, "valid": 12, "test": 12}.items():
        lines = [
            " ".join(letters[(i * j) % 5 % len(letters)] for j in range(1, 3 + i % 7))
            for i in range(count)
        ]
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("corpora")
    return write_corpus(folder / "first", "abc"), write_corpus(folder / "second", "cab")


def run_briefly(name: str, data: object, out: Path, **options: Any) -> Path:
    settings = {"tokens_per_batch": 100, "log_every": 1} | options.pop("settings", {})
    options = {"steps": 4, "quiet": True} | options
    train(name, data=str(data), out=out, settings=settings, **options)
    return out


@pytest.fixture(scope="module")
def parent(corpora: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("parents") / "parent"
    return run_briefly("lstm", corpora[0], out, size="tiny", steps=8)


def values(run: Path, texts: tuple[str, ...] = ("a b c a", "c c b")) -> list[float]:
    return [score.value for score in lmlab.load(run).score(texts)]


def test_sgd_steps_equal_a_loop_written_by_hand(
    corpora: tuple[Path, Path], parent: Path, tmp_path: Path
):
    """Three steps of plain SGD from the parent's weights on the other text."""
    settings = {"optimizer": "sgd", "learning_rate": 0.1, "grad_clip": 0.0}
    run = run_briefly(
        "lstm", corpora[1], tmp_path / "run", base=parent, steps=3, settings=settings
    )

    model = load_run(parent)
    system = model.system.train()
    config = TrainingConfig(tokens_per_batch=100)
    data = training_data(open_corpus(corpora[1]), model.tokenizer, config, progress=False)
    batches = list(data.train.epoch(0))[:3]
    for batch in batches:
        system.zero_grad()
        loss, _ = system.loss(batch)
        (loss.total / loss.count).backward()
        with torch.no_grad():
            for parameter in system.parameters():
                parameter -= 0.1 * parameter.grad
    trained = read_tensors(run / "trainer" / "step-3" / "model.safetensors")
    by_hand = system.state_dict()
    assert trained.keys() == by_hand.keys()
    for name, value in trained.items():
        torch.testing.assert_close(value, by_hand[name], rtol=1e-5, atol=1e-7)
    first = load_run(parent).system.state_dict()
    assert not torch.allclose(trained["emission.weight"], first["emission.weight"])


CASES = {
    "lstm": {},
    "lstm-nce": {"settings": {"objective": "nce"}},
    "autoencoder-vae": {"base": "mlp-autoencoder"},
    "knowbert": {"base": "bert", "data": "capitals"},
    "residual-ebm": {"base": "gpt"},
    "rag-token": {"base": "dpr", "data": "capitals"},
}


@pytest.mark.parametrize("case", ["lstm", "lstm-nce", "autoencoder-vae", "knowbert"])
def test_a_continued_run_whose_weights_do_not_change_scores_the_same(
    case: str, corpora: tuple[Path, Path], tmp_path: Path
):
    """The scores before and after are equal, whatever the system sets up from the new text."""
    name, wanted = case.removesuffix("-nce"), CASES[case]
    first = wanted.get("data", corpora[0])
    second = wanted.get("data", corpora[1])
    settings = wanted.get("settings", {})
    base = {}
    if "base" in wanted:
        base["base"] = run_briefly(wanted["base"], first, tmp_path / "base", size="tiny")
    before = run_briefly(
        name, first, tmp_path / "before", size="tiny", settings=settings, **base
    )
    after = run_briefly(name, second, tmp_path / "after", base=before, settings=FROZEN)
    assert values(after) == values(before)
