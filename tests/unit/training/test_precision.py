"""Lower precision, gradient checkpointing and devices of trainings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import lmlab
from lmlab.core.errors import UserError
from lmlab.core.tensor_files import read_tensors
from lmlab.layers.block_execution import BlockExecution
from lmlab.layers.model_placement import set_block_execution
from lmlab.layers.stack import Stack

TEXTS = ["the dog sleeps", "a cat"]
DROPOUT = {"dropout": 0.3, "log_every": 1}
BFLOAT16_ROUNDING = 2.0**-8
"""Relative rounding error with 8 bits of mantissa, the implicit one included."""
ROUNDINGS = 16
"""Roundings on the way through a Transformer block: four products, each with inputs, weights and
outputs rounded, and the two of attention, with inputs and outputs."""


def train(out: Path, system: str = "gpt", **options: Any) -> Any:
    settings = DROPOUT | options.pop("settings", {})
    return lmlab.train(
        system, data="grammar", out=out, size="tiny", settings=settings, quiet=True, **options
    )


def train_losses(run: Path) -> list[float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["event"] == "train"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A tiny GPT trained for a few steps in float32."""
    return train(tmp_path_factory.mktemp("runs") / "gpt", steps=4).path


def test_bfloat16_scores_within_its_rounding(run):
    exact = lmlab.load(run).score(TEXTS)
    rounded = lmlab.load(run, precision="bfloat16")
    [stack] = [part for part in rounded.system.modules() if isinstance(part, Stack)]
    # A relative error of the hidden state is one of each logit; log p is a logit minus their
    # normaliser, which each err at most by the largest error of a logit. (At a norm of the final
    # layer norm's √W, a logit is at most √W times the norm of its token's vector.)
    emission = rounded.system.emission
    weight = next(p for name, p in emission.named_parameters() if p.ndim == 2)
    largest_logit = weight.shape[1] ** 0.5 * weight.detach().norm(dim=1).max().item()
    bound = 2 * stack.depth * ROUNDINGS * BFLOAT16_ROUNDING * largest_logit
    for before, after in zip(exact, rounded.score(TEXTS), strict=True):
        assert 0 < abs(before.total - after.total) <= bound * before.tokens
        assert after.convention.precision == "bfloat16"
        assert before.convention.precision == "float32"


def test_bfloat16_trains_to_nearly_the_same_loss(run, tmp_path):
    result = train(tmp_path / "b", steps=4, precision="bfloat16")
    exact, rounded = train_losses(run), train_losses(result.path)
    # Four steps from the same weights: each loss within a few roundings of its value.
    assert rounded == pytest.approx(exact, rel=8 * BFLOAT16_ROUNDING)
    assert rounded != exact
    assert lmlab.load(result.path).config.training.precision == "bfloat16"
    weights = read_tensors(result.path / "model.safetensors")
    assert {w.dtype for w in weights.values() if w.is_floating_point()} == {torch.float32}


@pytest.mark.parametrize("system", ["gpt", "lstm", "gru-minimal"])
def test_log_probs_are_float32(system, tmp_path):
    model = lmlab.load(train(tmp_path / "r", system, steps=1, precision="bfloat16").path).system
    set_block_execution(model, BlockExecution(dtype=torch.bfloat16))
    from lmlab.core.batch import Batch

    batch = Batch.collate([[2, 5, 6, 3], [2, 5, 3]], 0)
    loss, _ = model.loss(batch)
    assert loss.total.dtype == torch.float32
    assert model.log_prob(batch).totals.dtype == torch.float32


@pytest.mark.parametrize("system", ["gpt", "lstm", "albert", "transformer-xl"])
def test_checkpointing_gives_the_same_gradients(system, tmp_path):
    """Dropout included: the random state of a block is restored when it is computed again."""
    from lmlab.core.batch import Batch

    model = lmlab.load(train(tmp_path / "r", system, steps=1).path).system.train()
    batch = Batch.collate([[2, 5, 6, 7, 3], [2, 5, 3]], 0)
    gradients = []
    for checkpointing in (False, True):
        set_block_execution(model, BlockExecution(checkpointing=checkpointing))
        model.zero_grad()
        torch.manual_seed(1)
        loss, _ = model.loss(batch, generator=torch.Generator().manual_seed(1))
        loss.total.backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=0, atol=1e-6)


def test_checkpointing_keeps_fewer_activations(run):
    from lmlab.core.batch import Batch

    model, kept = lmlab.load(run).system.train(), []
    batch = Batch.collate([[2, 5, 6, 7, 3], [2, 5, 3]], 0)
    for checkpointing in (False, True):
        set_block_execution(model, BlockExecution(checkpointing=checkpointing))
        saved: list[int] = []

        def pack(tensor: torch.Tensor, saved: list[int] = saved) -> torch.Tensor:
            saved.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model.loss(batch)
        kept.append(sum(saved))
    assert kept[1] < kept[0] / 2


def test_resume_with_checkpointing_is_bit_identical(tmp_path):
    once = train(tmp_path / "once", steps=6, gradient_checkpointing=True).path
    train(tmp_path / "twice", steps=3, gradient_checkpointing=True)
    twice = train(tmp_path / "twice", steps=6, resume=True).path
    assert lmlab.load(twice).config.training.gradient_checkpointing
    assert train_losses(once) == train_losses(twice)
    first, second = (read_tensors(path / "model.safetensors") for path in (once, twice))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_environment_records_device_and_threads(run):
    environment = json.loads((run / "environment.json").read_text())
    assert environment["device"] == str(lmlab.load(run).system.emission.weight.device)
    assert environment["threads"] >= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "no device called 'gpu'"),
        ({"precision": "half"}, "no value of precision called 'half'"),
        ({"precision": "float16", "device": "cpu"}, "float16 needs a GPU"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
    ],
)
def test_bad_options_leave_no_run(options, message, tmp_path):
    with pytest.raises(UserError, match=message):
        train(tmp_path / "r", steps=1, **options)
    assert not (tmp_path / "r" / "config.json").exists()


def test_precision_does_not_apply_to_counting(tmp_path):
    with pytest.raises(UserError, match="a lower precision applies to Transformer and recurrent"):
        lmlab.train("ngram", data="grammar", out=tmp_path, precision="bfloat16", quiet=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_training_and_scoring_on_cuda(precision, tmp_path):
    """Without dropout, whose random numbers are a device's own."""
    tolerance = {"float32": 1e-4, "bfloat16": 8 * BFLOAT16_ROUNDING, "float16": 2.0**-8}
    check_device("cuda", precision, tolerance[precision], tmp_path)


@pytest.mark.skipif(not torch.backends.mps.is_available(), reason="there is no MPS device")
def test_training_and_scoring_on_mps(tmp_path):
    check_device("mps", "float32", 1e-3, tmp_path)


def check_device(device: str, precision: str, tolerance: float, folder: Path) -> None:
    """Training losses and scores are those of the CPU."""
    options: dict[str, Any] = {"steps": 4, "settings": {"dropout": 0.0}}
    there = train(folder / "there", device=device, precision=precision, **options).path
    here = train(folder / "here", device="cpu", **options).path
    assert train_losses(there) == pytest.approx(train_losses(here), rel=tolerance)
    scores = [lmlab.load(here, device=name).score(TEXTS) for name in (device, "cpu")]
    on_device, on_cpu = ([score.total for score in each] for each in scores)
    assert on_device == pytest.approx(on_cpu, rel=1e-4)


@pytest.mark.parametrize(
    ("system", "settings", "message"),
    [
        ("ngram", {}, "--distributed fsdp applies to systems that are trained by gradients"),
        ("gpt", {"average": 2}, "average does not apply to --distributed fsdp"),
    ],
)
def test_fsdp_is_refused_where_it_does_not_apply(system, settings, message, tmp_path):
    options = {"size": "tiny", "distributed": "fsdp", "settings": settings, "quiet": True}
    with pytest.raises(UserError, match=message):
        lmlab.train(system, data="grammar", out=tmp_path / "run", **options)
    assert not (tmp_path / "run" / "config.json").exists()
