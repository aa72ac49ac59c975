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
    return [score.total for score in lmlab.load(run).score(texts)]


def test_sgd_steps_equal_a_loop_written_by_hand(
    corpora: tuple[Path, Path], parent: Path, tmp_path: Path
):
    """Three steps of plain SGD from the parent's weights on the other text."""
    settings = {"optimizer": "sgd", "learning_rate": 0.1, "grad_clip": 0.0}
    run = run_briefly("lstm", corpora[1], tmp_path / "run", base=parent, steps=3, settings=settings)

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


CASES: dict[str, dict[str, Any]] = {
    "lstm-nce": {"settings": {"objective": "nce"}},
    "autoencoder-vae": {"base": "mlp-autoencoder"},
    "knowbert": {"base": "bert", "options": {"knowledge": "capitals"}},
}
"""Systems that set something up from the text, or that are built on another one."""


@pytest.mark.parametrize("case", CASES)
def test_a_continued_run_whose_weights_do_not_change_scores_the_same(
    case: str, corpora: tuple[Path, Path], tmp_path: Path
):
    name, wanted = case.removesuffix("-nce"), CASES[case]
    first, second = corpora
    base: dict[str, Any] = dict(wanted.get("options", {}))
    if "base" in wanted:
        base["base"] = run_briefly(wanted["base"], first, tmp_path / "base", size="tiny", steps=1)
    settings = wanted.get("settings", {})
    before = tmp_path / "before"
    run_briefly(name, first, before, size="tiny", settings=settings, steps=1, **base)
    after = run_briefly(name, second, tmp_path / "after", base=before, settings=FROZEN, steps=1)
    assert values(after) == values(before)
    recorded = json.loads((after / "config.json").read_text())
    assert recorded["continued_from"]["path"] == str(before)
    assert recorded.get("base", {}).get("system") == wanted.get("base")


def test_the_chain_is_recorded_printed_and_resumed_without_its_folders(
    corpora: tuple[Path, Path], parent: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    copy = shutil.copytree(parent, tmp_path / "copy")
    run_briefly("lstm", corpora[1], tmp_path / "child", base=copy, steps=2)
    capfd.readouterr()
    grandchild = tmp_path / "grandchild"
    run_briefly("lstm", corpora[0], grandchild, base=tmp_path / "child", steps=2, quiet=False)
    first_line = capfd.readouterr().err.splitlines()[0]
    assert first_line.startswith(f"--base: continues the training of {tmp_path / 'child'} (lstm, ")
    config = load_run(grandchild).config
    assert config.continued_from is not None
    assert config.continued_from.history() == (
        f"lstm, trained on {corpora[0]}, then trained on {corpora[1]}"
    )
    chain = [ancestor.path for ancestor in lmlab.runs_show(grandchild).ancestors]
    assert chain == [str(tmp_path / "child"), str(copy)]

    whole = run_briefly("lstm", corpora[1], tmp_path / "whole", base=tmp_path / "child", steps=5)
    halves = run_briefly("lstm", corpora[1], tmp_path / "halves", base=tmp_path / "child", steps=3)
    shutil.rmtree(copy)
    shutil.rmtree(tmp_path / "child")
    run_briefly("lstm", corpora[1], halves, steps=5, resume=True)
    weights = [(run / "model.safetensors").read_bytes() for run in (whole, halves)]
    assert weights[0] == weights[1]


def test_size_and_settings_are_those_of_the_base(
    corpora: tuple[Path, Path], parent: Path, tmp_path: Path
):
    settings = {"dropout": 0.25, "learning_rate": 0.5}
    run = run_briefly("lstm", corpora[1], tmp_path / "run", base=parent, settings=settings)
    before, after = (load_run(path).config for path in (parent, run))
    assert after.size == before.size == "tiny"
    assert after.system_config == {**before.system_config, "dropout": 0.25}
    assert (after.training.learning_rate, before.training.learning_rate) == (0.5, 2e-3)
    assert after.vocabulary == before.vocabulary


def test_what_a_continued_training_can_not_take_is_refused(
    corpora: tuple[Path, Path], parent: Path, tmp_path: Path
):
    cases: list[tuple[str, dict[str, Any]]] = [
        ("--tokenizer does not apply", {"tokenizer": "char"}),
        ("--size does not apply", {"size": "small"}),
        ("--encoder does not apply", {"encoder": parent}),
        ("--set vocabulary_size does not apply", {"settings": {"vocabulary_size": 99}}),
        ("do not fit the weights of the base", {"settings": {"width": 7}}),
    ]
    for message, options in cases:
        with pytest.raises(UserError, match=message):
            run_briefly("lstm", corpora[1], tmp_path / "run", **({"base": parent} | options))
    with pytest.raises(UserError, match="is a run of lstm, and gru continues only runs of its own"):
        run_briefly("gru", corpora[1], tmp_path / "run", base=parent)
    counts = run_briefly("ngram", corpora[0], tmp_path / "counts")
    with pytest.raises(UserError, match=r"estimated from the counts of one text"):
        run_briefly("ngram", corpora[1], tmp_path / "run", base=counts)
    contiguous = tmp_path / "contiguous.txt"
    contiguous.write_text("a b c a b c\n" * 50)
    with pytest.raises(UserError, match="another layout"):
        run_briefly("lstm", f"contiguous:{contiguous}", tmp_path / "run", base=parent)


def test_a_tokenizer_that_knows_little_of_the_new_text_is_warned_of(
    parent: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    other = write_corpus(tmp_path / "corpus", "axyz")
    run_briefly("lstm", other, tmp_path / "run", base=parent, steps=1, quiet=False)
    assert "of the training tokens are unknown to the tokenizer of" in capfd.readouterr().err


def test_a_training_that_fails_leaves_its_error_and_a_progress_to_read(
    corpora: tuple[Path, Path], parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lines = (parent / "metrics.jsonl").read_text().splitlines()
    epochs = [json.loads(line)["epochs"] for line in lines if '"train"' in line]
    assert epochs == pytest.approx([step * epochs[0] for step in range(1, 9)], abs=1e-3)
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("lmlab.training.loop.clip_gradients", lambda *_: float("nan"))
        with pytest.raises(UserError, match="gradient is not finite"):
            run_briefly("lstm", corpora[0], run, size="tiny")
    assert "is not finite" in json.loads((run / "failure.json").read_text())["error"]
    assert [record.status for record in lmlab.runs(run)] == ["failed"]
    run_briefly("lstm", corpora[0], run, resume=True)
    assert [record.status for record in lmlab.runs(run)] == ["finished"]
