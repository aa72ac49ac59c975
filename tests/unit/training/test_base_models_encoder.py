"""`--encoder RUN`: inherited settings and weights, and incompatible runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from lmlab.core.errors import UserError
from lmlab.training.run_folder import load_run
from lmlab.training.train import train

SETTINGS = {"tokens_per_batch": 200, "log_every": 1, "learning_rate": 0.02}
ENCODER = {"width": 8, "layers": 2, "heads": 2, "length": 24, "dropout": 0.0}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for split, count in {"train": 40, "valid": 8}.items():
        lines = [" ".join("ab"[(i * j) % 3 % 2] for j in range(1, 3 + i % 7)) for i in range(count)]
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def train_briefly(
    name: str, corpus: Path, out: Path, *, settings=None, steps: int = 4, **options
) -> Path:
    train(
        name,
        data=str(corpus),
        out=out,
        size=None if options.get("resume") else "tiny",
        settings=SETTINGS | (settings or {}),
        steps=steps,
        quiet=True,
        **options,
    )
    return out


@pytest.fixture(scope="module")
def runs(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A base language model and a pretrained encoder."""
    out = tmp_path_factory.mktemp("runs")
    return {
        "base": train_briefly("lstm", corpus, out / "lstm"),
        "encoder": train_briefly("roberta", corpus, out / "roberta", settings=ENCODER),
    }


def losses(run: Path) -> list[float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["event"] == "train"]


def test_encoder_settings_and_weights_are_taken_over(
    corpus: Path, runs: dict[str, Path], tmp_path: Path
):
    """At a negligible learning rate the weights are still those of the encoder."""
    still = {"learning_rate": 1e-30, "attention_dropout": 0.25}
    run = train_briefly("residual-ebm", corpus, tmp_path / "run", settings=still, steps=1, **runs)
    recorded = json.loads((run / "config.json").read_text())
    wanted = ENCODER | {"pre_norm": False, "embedding_norm": True, "segments": 1}
    assert {name: recorded["system_config"][name] for name in wanted} == wanted
    assert recorded["system_config"]["attention_dropout"] == 0.25, "what is given wins"
    assert recorded["encoder"]["path"] == str(runs["encoder"])
    assert recorded["encoder"]["system"] == "roberta"
    assert recorded["base"]["system"] == "lstm"
    ours = load_run(run).system.backbone.state_dict()
    theirs = load_run(runs["encoder"]).system.backbone.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_resume_works_without_the_base_and_encoder_runs(
    corpus: Path, runs: dict[str, Path], tmp_path: Path
):
    copies = {role: shutil.copytree(path, tmp_path / role) for role, path in runs.items()}
    whole = train_briefly("residual-ebm", corpus, tmp_path / "whole", steps=6, **copies)
    halves = train_briefly("residual-ebm", corpus, tmp_path / "halves", steps=3, **copies)
    for path in copies.values():
        shutil.rmtree(path)
    train_briefly("residual-ebm", corpus, halves, steps=6, resume=True)
    assert losses(halves) == losses(whole)
    ours, theirs = (load_run(run).system.state_dict() for run in (halves, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_incompatible_encoder_runs_are_rejected(
    corpus: Path, runs: dict[str, Path], tmp_path: Path
):
    other = train_briefly(
        "roberta", corpus, tmp_path / "letters", settings=ENCODER, tokenizer="char"
    )
    rejected = [
        ("residual-ebm", runs | {"encoder": other}, "trained with a different tokenizer than"),
        ("ebm", {"encoder": runs["base"]}, "must be a run of a Transformer encoder"),
        ("ebm", {"encoder": runs["encoder"], "settings": {"heads": 4}}, "encoder has a different"),
        ("gpt", {"encoder": runs["encoder"]}, "--encoder does not apply to gpt; remove it"),
    ]
    for number, (name, options, message) in enumerate(rejected):
        out = tmp_path / str(number)
        with pytest.raises(UserError, match=message):
            train_briefly(name, corpus, out, **options)
        assert not (out / "config.json").exists()


def test_resume_with_another_encoder_is_rejected(
    corpus: Path, runs: dict[str, Path], tmp_path: Path
):
    run = train_briefly("ebm", corpus, tmp_path / "run", encoder=runs["encoder"])
    other = train_briefly("roberta", corpus, tmp_path / "other", settings=ENCODER, seed=5)
    with pytest.raises(UserError, match=r"earlier version of the encoder .* has other weights"):
        train_briefly("ebm", corpus, run, steps=8, resume=True, encoder=other)
    plain = train_briefly("ebm", corpus, tmp_path / "plain")
    with pytest.raises(UserError, match="was started without --encoder; resume it without"):
        train_briefly("ebm", corpus, plain, steps=8, resume=True, encoder=other)
