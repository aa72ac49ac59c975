"""Runs with a teacher (`--teacher RUN`): records, tokenizers, steps by hand, resuming, refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lmlab
from lmlab.core.errors import UserError
from lmlab.core.manifest import hash_file
from lmlab.core.state import TensorState
from lmlab.core.tensor_files import read_tensors
from lmlab.training.distillation import Distillation, join_states, split_states
from lmlab.training.run_folder import load_run
from lmlab.training.train import train

Losses = Callable[[Path], list[dict[str, Any]]]
SETTINGS = {"tokens_per_batch": 100, "log_every": 1}


def write_corpus(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for split, count in {"train": 60, "valid": 12, "test": 12}.items():
        texts = [
            " ".join("abc"[(i * j) % 5 % 3] for j in range(1, 3 + i % 7)) for i in range(count)
        ]
        (folder / f"{split}.txt").write_text("\n".join(texts) + "\n")
    return folder


def run_briefly(name: str, data: Path | str, out: Path, **options: Any) -> Path:
    settings = SETTINGS | options.pop("settings", {})
    options = {"size": "tiny", "steps": 4} | options
    train(name, data=data, out=out, settings=settings, quiet=True, **options)
    return out


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data") / "texts")


@pytest.fixture(scope="module")
def teacher(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("teachers") / "gpt"
    return run_briefly("gpt", data, out, steps=30, settings={"width": 24})


def test_an_ordinary_run_that_records_its_teacher(data: Path, teacher: Path, tmp_path: Path):
    """The teacher is recorded, its tokenizer is taken, and the run does without it."""
    moved = shutil.copytree(teacher, tmp_path / "moved")
    out = run_briefly("gpt", data, tmp_path / "student", teacher=moved)
    model = load_run(out)
    record = model.config.teacher
    assert record is not None and record.path == str(moved) and record.system == "gpt"
    assert record.history() == f"gpt, trained on {data}"
    assert record.weights == hash_file(teacher / "model.safetensors")
    assert model.tokenizer.fingerprint() == load_run(teacher).tokenizer.fingerprint()
    plain = run_briefly("gpt", data, tmp_path / "plain")
    assert (
        read_tensors(out / "model.safetensors").keys()
        == read_tensors(plain / "model.safetensors").keys()
    )
    further = run_briefly("gpt", data, tmp_path / "further", base=out, size=None)
    continued = load_run(further).config.continued_from
    assert continued is not None and continued.teacher == record
    assert continued.history().endswith(f"taught by {moved}")


def test_validation_is_the_plain_loss_of_the_student(
    data: Path, teacher: Path, tmp_path: Path, read_losses: Losses
):
    out = run_briefly("gpt", data, tmp_path / "student", teacher=teacher)
    [measured] = [x["loss"] for x in read_losses(out) if x["event"] == "validation"][-1:]
    texts = (data / "valid.txt").read_text().split("\n")[:-1]
    scores = lmlab.load(out).score(texts)
    expected = -sum(s.total for s in scores) / sum(s.tokens for s in scores)
    assert measured == pytest.approx(expected, rel=1e-5)


def test_no_weight_on_the_teacher_is_training_alone(data: Path, teacher: Path, tmp_path: Path):
    """α = 0: the steps of a plain training, so the same weights but for rounding."""
    settings = {"optimizer": "sgd", "learning_rate": 0.1}  # Adam's steps amplify rounding
    plain = run_briefly(
        "gpt",
        data,
        tmp_path / "plain",
        tokenizer=str(teacher / "tokenizer.json"),
        settings=settings,
    )
    settings |= {"soft_target_weight": 0}
    taught = run_briefly("gpt", data, tmp_path / "taught", teacher=teacher, settings=settings)
    first, second = (read_tensors(run / "model.safetensors") for run in (plain, taught))
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=1e-4, atol=1e-5)


def test_a_student_learns_its_teachers_distribution(data: Path, teacher: Path, tmp_path: Path):
    """α = 1 never sees the text's own loss, and still ends nearer the teacher than the student
    that was trained alone for as many steps."""
    options: dict[str, Any] = {"steps": 40, "settings": {"learning_rate": 1e-2}}
    alone = run_briefly("gru", data, tmp_path / "alone", **options)
    settings = {"soft_target_weight": 1, "soft_target_temperature": 1, "learning_rate": 1e-2}
    taught = run_briefly(
        "gru", data, tmp_path / "taught", teacher=teacher, steps=40, settings=settings
    )
    texts = ["a b c a", "c c b", "b a", "a a a c b"]
    aims, near, far = (
        [score.total for score in lmlab.load(run).score(texts)] for run in (teacher, taught, alone)
    )

    def distance(values: list[float]) -> float:
        return sum(abs(value - aim) for value, aim in zip(values, aims, strict=True))

    assert distance(near) < distance(far)


@pytest.mark.parametrize("case", ["lstm", "bert"])
def test_a_training_that_broke_off_resumes_identically(
    case: str, data: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Killed in step 8 after a checkpoint at 6: all later losses, weights and projections are the
    same. On contiguous text the states of student and teacher are carried on."""
    settings = {"checkpoint_steps": 3, "hidden_state_weight": 0.5, "dropout": 0.1}
    corpus, stream = str(data), {"bptt": 4, "stream_batch_size": 2}
    if case == "lstm":
        corpus, settings = f"contiguous:{data}", settings | stream
    sizes = {"width": 24} | (stream if case == "lstm" else {})
    given = run_briefly(case, corpus, tmp_path / "big", settings=sizes)
    options: dict[str, Any] = {"teacher": given, "settings": settings, "steps": 12}
    whole = run_briefly(case, corpus, tmp_path / "whole", **options)

    loss, calls = Distillation.loss, []

    def broken(self: Distillation, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) > 8:
            raise KeyboardInterrupt
        return loss(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Distillation, "loss", broken)
        with pytest.raises(KeyboardInterrupt):
            run_briefly(case, corpus, tmp_path / "parts", **options)
    parts = run_briefly(case, corpus, tmp_path / "parts", resume=True, steps=12)
    for name in ("model", "optimizer", "recurrent_state"):
        files = [run / "trainer" / "step-12" / f"{name}.safetensors" for run in (whole, parts)]
        assert files[0].read_bytes() == files[1].read_bytes(), name
    keys = read_tensors(whole / "trainer" / "step-12" / "model.safetensors").keys()
    assert not any("teacher" in key for key in keys)
    assert any("projections" in key for key in keys)
    states = read_tensors(whole / "trainer" / "step-12" / "recurrent_state.safetensors")
    if case == "lstm":
        assert {key.split(".")[0] for key in states} == {"student", "teacher"}


def test_states_are_joined_and_split():
    student, teacher = (TensorState({"0.h": torch.ones(2, n)}) for n in (3, 5))
    for pair in ((student, teacher), (student, None), (None, teacher), (None, None)):
        back = split_states(join_states(*pair))
        for before, after in zip(pair, back, strict=True):
            assert (before is None) == (after is None)
            if before is not None and after is not None:
                assert after["0.h"].shape == before["0.h"].shape


def test_a_translator_takes_both_tokenizers(tmp_path: Path):
    lines = [f"{' '.join('ab'[i % 2] for i in range(n))}\t{'x ' * n}" for n in range(1, 30)]
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("\n".join(line.strip() for line in lines) + "\n")
    big = run_briefly(
        "transformer", pairs, tmp_path / "big", tokenizer="word", source_tokenizer="char"
    )
    settings = {"layers": 1, "hidden_state_weight": 1, "label_smoothing": 0.1}
    small = run_briefly("transformer", pairs, tmp_path / "small", teacher=big, settings=settings)
    given, taken = load_run(big), load_run(small)
    assert given.source_tokenizer is not None and taken.source_tokenizer is not None
    assert taken.tokenizer.fingerprint() == given.tokenizer.fingerprint()
    assert taken.source_tokenizer.fingerprint() == given.source_tokenizer.fingerprint()
    with pytest.raises(UserError, match="--source-tokenizer word does not apply: the tokenizer is"):
        run_briefly("transformer", pairs, tmp_path / "x", teacher=big, source_tokenizer="word")


# Refusals ---------------------------------------------------------------------------------------


def test_a_run_is_not_resumed_without_its_teacher_or_with_another(
    data: Path, teacher: Path, tmp_path: Path
):
    mine, other = shutil.copytree(teacher, tmp_path / "mine"), tmp_path / "other"
    run_briefly("gpt", data, other, settings={"width": 24}, steps=2)
    out = run_briefly("gpt", data, tmp_path / "student", teacher=mine)
    with pytest.raises(UserError, match="has other weights; restore that version, or choose"):
        run_briefly("gpt", data, out, resume=True, steps=6, teacher=other)
    mine.rename(tmp_path / "renamed")
    with pytest.raises(UserError, match=r"is gone, and is needed to train it further; restore it"):
        run_briefly("gpt", data, out, resume=True, steps=6)
    run_briefly("gpt", data, out, resume=True, steps=6, teacher=tmp_path / "renamed")
    assert json.loads((out / "config.json").read_text())["training"]["steps"] == 6
    with pytest.raises(UserError, match=r"started with soft_target_weight=0\.5, got 0\.9"):
        run_briefly(
            "gpt",
            data,
            out,
            resume=True,
            steps=8,
            teacher=tmp_path / "renamed",
            settings={"soft_target_weight": 0.9},
        )
    plain = run_briefly("gpt", data, tmp_path / "plain")
    with pytest.raises(UserError, match="was started without --teacher"):
        run_briefly("gpt", data, plain, resume=True, steps=6, teacher=other)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "tokenizer": ("gpt", {"tokenizer": "char"}, "the tokenizer is that of the teacher"),
    "counting": ("ngram", {}, "applies only to systems that are trained by gradient"),
    "kind": ("bert", {}, "predicts tokens given a prefix, and the student given a masked text"),
    "sampled": ("gpt", {"objective": "nce"}, "a sampled loss does not compute"),
    "whole texts": ("xlnet", {}, "which this student does not have"),
    "predecessor": ("gpt", {"settings": {"replacing_rate": 0.1}}, "only with --predecessor RUN"),
    "sharded": ("gpt", {"distributed": "fsdp"}, "do not apply to --distributed fsdp; use ddp"),
    "weight": ("gpt", {"settings": {"soft_target_weight": 2}}, "at least 0 and at most 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    case: str, data: Path, teacher: Path, tmp_path: Path
):
    name, options, sentence = REFUSED[case]
    with pytest.raises(UserError, match=sentence):
        run_briefly(name, data, tmp_path / "x", teacher=teacher, **options)
    assert not (tmp_path / "x" / "config.json").exists()


def test_other_refusals(data: Path, teacher: Path, tmp_path: Path):
    with pytest.raises(UserError, match="soft_target_weight applies only with --teacher RUN"):
        run_briefly("gpt", data, tmp_path / "x", settings={"soft_target_weight": 0.9})
    with pytest.raises(UserError, match="there is no run at"):
        run_briefly("gpt", data, tmp_path / "x", teacher=tmp_path / "none")
    with pytest.raises(UserError, match=r"another layout \(contiguous or in sentences\)"):
        run_briefly("gpt", f"contiguous:{data}", tmp_path / "x", teacher=teacher)
    own = run_briefly("gpt", data, tmp_path / "own", tokenizer="char")
    with pytest.raises(UserError, match="with a different tokenizer than the new run"):
        run_briefly("gpt", data, tmp_path / "x", teacher=teacher, base=own, size=None)
