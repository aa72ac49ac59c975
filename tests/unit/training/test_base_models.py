"""Runs with a base run (`--base`): inherited parts, recorded base, resuming without it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import catalogue
from lmlab.training.run_folder import load_run
from lmlab.training.train import train

NAME = "autoencoder-vae"
SETTINGS = {"tokens_per_batch": 200, "log_every": 1, "learning_rate": 0.02}
SENTENCE = Batch.collate([[2, 5, 6, 5, 3]], pad=0)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for split, count in {"train": 60, "valid": 10, "test": 10}.items():
        lines = [" ".join("ab"[(i * j) % 3 % 2] for j in range(1, 3 + i % 7)) for i in range(count)]
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def train_briefly(name: str, corpus: Path, out: Path, *, steps: int = 6, **options) -> Path:
    train(
        name,
        data=str(corpus),
        out=out,
        size="tiny",
        settings=SETTINGS,
        steps=steps,
        quiet=True,
        **options,
    )
    return out


@pytest.fixture(scope="module")
def base(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bases") / "base"
    return train_briefly(catalogue()[NAME].base, corpus, out)


def losses(run: Path) -> list[float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["event"] == "train"]


def test_missing_base_is_reported_before_writing(corpus: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"needs a trained base model.*--base"):
        train_briefly(NAME, corpus, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_base_is_rejected_by_systems_without_one(corpus: Path, base: Path, tmp_path: Path):
    with pytest.raises(UserError, match="gru continues only runs of its own"):
        train_briefly("gru", corpus, tmp_path / "run", base=base)


def test_base_of_another_kind_is_rejected(corpus: Path, tmp_path: Path):
    other = train_briefly("gru", corpus, tmp_path / "gru")
    with pytest.raises(UserError, match="must be an autoencoder"):
        train_briefly(NAME, corpus, tmp_path / "run", base=other)


def test_tokenizer_is_taken_from_the_base(corpus: Path, base: Path, tmp_path: Path):
    with pytest.raises(UserError, match="tokenizer is that of the base"):
        train_briefly(NAME, corpus, tmp_path / "run", base=base, tokenizer="char")
    run = train_briefly(NAME, corpus, tmp_path / "run", base=base)
    assert (run / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()


def test_base_weights_are_copied_unchanged_and_frozen(corpus: Path, base: Path, tmp_path: Path):
    """The base's parts are bit for bit the same in the new run."""
    before = (base / "model.safetensors").read_bytes()
    run = train_briefly(NAME, corpus, tmp_path / "run", base=str(base))
    assert (base / "model.safetensors").read_bytes() == before
    recorded = json.loads((run / "config.json").read_text())["base"]
    assert recorded["system"] == catalogue()[NAME].base
    assert recorded["path"] == str(base)

    original, chained = load_run(base).system, load_run(run).system
    pairs = [
        (original.backbone.encoder, chained.objective.encoder.encoder),
        (original.backbone.decoder, chained.backbone.inner),
        (original.emission, chained.emission),
    ]
    for theirs, ours in pairs:
        assert theirs.state_dict().keys() == ours.state_dict().keys()
        assert all(torch.equal(v, ours.state_dict()[k]) for k, v in theirs.state_dict().items())
    trained = {name for name, value in chained.named_parameters() if value.requires_grad}
    assert trained
    assert not any("emission" in name or "inner" in name for name in trained)


def test_frozen_parts_stay_in_evaluation_mode(corpus: Path, base: Path, tmp_path: Path):
    system = load_run(train_briefly(NAME, corpus, tmp_path / "run", base=base)).system.train()
    assert system.training
    assert system.backbone.network.training
    assert not any(part.training for part in system.frozen)


def test_resume_works_without_the_base_folder(corpus: Path, base: Path, tmp_path: Path):
    copy = shutil.copytree(base, tmp_path / "base")
    whole = train_briefly(NAME, corpus, tmp_path / "whole", base=copy, steps=8)
    halves = train_briefly(NAME, corpus, tmp_path / "halves", base=copy, steps=4)
    shutil.rmtree(copy)
    train_briefly(NAME, corpus, halves, steps=8, resume=True)
    assert losses(halves) == losses(whole)
    with torch.no_grad():
        totals = [load_run(run).system.log_prob(SENTENCE).totals for run in (halves, whole)]
    assert torch.equal(*totals)


def test_resume_with_another_base_is_rejected(corpus: Path, base: Path, tmp_path: Path):
    run = train_briefly(NAME, corpus, tmp_path / "run", base=base, steps=4)
    other = train_briefly(catalogue()[NAME].base, corpus, tmp_path / "other", seed=5)
    with pytest.raises(UserError, match="has other weights"):
        train_briefly(NAME, corpus, run, base=other, steps=8, resume=True)


def test_overlong_sentence_is_reported_before_training(corpus: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"at most 5 tokens.*--set length=10"):
        train(
            "linear-autoencoder",
            data=str(corpus),
            out=tmp_path / "run",
            size="tiny",
            settings={"length": 5},
            steps=1,
            quiet=True,
        )
    assert not (tmp_path / "run" / "config.json").exists()


def test_kl_annealing_resumes_at_the_same_step(corpus: Path, tmp_path: Path):
    """β depends on the step number alone: two halves give the losses of the whole."""
    name, extra = "gru-vae", {"anneal_steps": 6}
    runs = {}
    for out, parts in {"whole": [(8, False)], "halves": [(3, False), (8, True)]}.items():
        runs[out] = tmp_path / out
        for steps, resume in parts:
            train(
                name,
                data=str(corpus),
                out=runs[out],
                size="tiny",
                settings=SETTINGS | extra,
                steps=steps,
                resume=resume,
                quiet=True,
            )
    assert losses(runs["halves"]) == losses(runs["whole"])
    plain = train_briefly(name, corpus, tmp_path / "plain", steps=8)
    assert losses(plain)[0] != losses(runs["whole"])[0]
