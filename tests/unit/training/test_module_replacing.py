"""BERT-of-Theseus: the schedule, replaced modules, what is trained, refusals, and resuming."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

import lmlab
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.system import TrainableSystem
from lmlab.core.vocabulary import Vocabulary
from lmlab.training.config import TrainingConfig
from lmlab.training.module_replacing import (
    ModuleReplacing,
    ReplacingSchedule,
    load_predecessor,
    make_module_replacing,
    named_stacks,
    pair_stacks,
)
from lmlab.training.run_folder import load_run
from lmlab.training.system_building import build_system
from lmlab.training.train import train
from lmlab.training.trainees import replacing_schedule

VOCABULARY = Vocabulary(size=11)
SYSTEMS = ("gpt", "bert", "albert", "transformer", "t5", "electra", "mpnet", "unilm")


def build(name: str, layers: int, seed: int = 0) -> TrainableSystem:
    module = system_module(name)
    config = asdict(module.SIZES["tiny"]) | {"layers": layers}
    system = build_system(name, config, VOCABULARY, seed=seed)
    assert isinstance(system, TrainableSystem)
    return system


def make(name: str, start: float, steps: int = 10) -> tuple[ModuleReplacing, TrainableSystem]:
    """A successor of two layers with a predecessor of four, as one, and the predecessor."""
    predecessor, successor = build(name, 4, seed=1), build(name, 2)
    load_predecessor(successor, predecessor, "large")
    schedule = ReplacingSchedule(start=start, steps=steps)
    return make_module_replacing(successor, predecessor, "large", schedule), predecessor


def text_batch(name: str = "gpt") -> Batch:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(5, 11, (3, 8), generator=generator)
    tokens[:, 0] = VOCABULARY.bos
    batch = Batch(tokens=tokens, lengths=torch.tensor([8, 6, 3]), rows=torch.arange(3))
    if name != "transformer":
        return batch
    return Batch(tokens=tokens, lengths=batch.lengths, rows=batch.rows, condition=batch)


def test_schedule_by_hand():
    """From ½ in 4 steps: ½, ⅝, ¾, ⅞, then 1."""
    schedule = ReplacingSchedule(start=0.5, steps=4)
    assert [schedule.rate(step) for step in range(6)] == [0.5, 0.625, 0.75, 0.875, 1.0, 1.0]
    assert ReplacingSchedule(start=0.0, steps=0).rate(0) == 1.0


def test_the_rate_rises_over_half_of_the_budget_by_default():
    config = TrainingConfig(steps=100, epochs=None, replacing_rate=0.3)
    assert replacing_schedule(config, 7) == ReplacingSchedule(start=0.3, steps=50)
    config = TrainingConfig(steps=100, epochs=4, grad_accumulation=2)
    assert replacing_schedule(config, 10).steps == 10, "4 epochs of 10 batches are 20 steps"
    assert replacing_schedule(TrainingConfig(steps=100, replacing_steps=70), 10).steps == 70
    with pytest.raises(UserError, match="a budget in minutes does not say"):
        replacing_schedule(TrainingConfig(minutes=1.0, epochs=None), 10)


@pytest.mark.parametrize("name", SYSTEMS)
def test_replacing_nothing_is_the_predecessor_and_everything_the_successor(name: str):
    batch = text_batch(name)
    training, predecessor = make(name, start=0.0)

    def loss(system: TrainableSystem) -> float:
        torch.manual_seed(0)
        with torch.no_grad():
            return system.loss(batch, generator=torch.Generator().manual_seed(5))[0].total.item()

    for parameter in training.successor.parameters():
        parameter.data += 0.01  # so that the two differ in more than depth …
    for parameter in training.shared_parameters():
        parameter.data -= 0.01  # … but not in what they share
    training.eval()
    # The draws come before the objective's own, so that generators differ by these.
    generator = torch.Generator().manual_seed(5)
    for item in training.stacks:
        torch.rand(len(item.modules), generator=generator)
    torch.manual_seed(0)
    with torch.no_grad():
        expected = predecessor.loss(batch, generator=generator)[0].total.item()
    assert loss(training) == pytest.approx(expected, rel=1e-6)
    assert loss(training) != pytest.approx(loss(training.successor), rel=1e-4)
    training.begin_step(10)
    assert loss(training) == loss(training.successor)


def test_a_mixture_by_hand():
    """The first module replaced, the second not: layer 1 of the successor, then 3 and 4."""
    training, predecessor = make("gpt", start=0.5)
    [item] = training.stacks
    own, other = item.stack.all_blocks(), dict(named_stacks(predecessor))["backbone.stack"]
    blocks = item.mixed_blocks([True, False])
    assert [id(b) for b in blocks] == [id(own[0]), id(other.block(3)), id(other.block(4))]
    with item.stack.running(blocks):
        assert item.stack.depth == 3 and item.stack.all_blocks() == blocks
    assert item.stack.depth == 2 and item.stack.all_blocks() == own


def test_modules_are_replaced_at_the_expected_rate(monkeypatch: pytest.MonkeyPatch):
    """At p = 0.6, 200 steps of 2 modules: 240 of 400, standard deviation 9.8."""
    training, _ = make("gpt", start=0.6, steps=10**9)
    [item] = training.stacks
    counts = []

    def running(blocks: list[Any]) -> Any:
        counts.append(sum(block in item.stack.all_blocks() for block in blocks))
        return before(blocks)

    before = item.stack.running
    monkeypatch.setattr(item.stack, "running", running)
    batch = text_batch().select([2])
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _ in range(200):
            training.loss(batch, generator=generator)
    assert abs(sum(counts) - 240) < 5 * 9.8


def test_only_the_layers_are_trained_until_all_modules_are_replaced():
    training, predecessor = make("gpt", start=0.999999)
    shared = {id(parameter) for parameter in training.shared_parameters()}
    loss, _ = training.loss(text_batch(), generator=torch.Generator().manual_seed(0))
    loss.mean.backward()
    for name, parameter in training.successor.named_parameters():
        assert (parameter.grad is None) == (id(parameter) in shared), name
        assert parameter.requires_grad
    assert {"backbone.embedding.tokens.weight", "backbone.stack.norm.weight"} <= {
        name for name, p in training.successor.named_parameters() if id(p) in shared
    }
    training.begin_step(10)
    training.loss(text_batch())[0].mean.backward()
    assert all(p.grad is not None for p in training.successor.parameters())
    assert all(p.grad is None for p in predecessor.parameters())


def test_a_step_that_replaces_nothing_changes_nothing():
    training, _ = make("gpt", start=0.0)
    loss, _ = training.loss(text_batch(), generator=torch.Generator().manual_seed(0))
    loss.total.backward()
    assert all(parameter.grad is None for parameter in training.parameters())


def test_the_predecessor_is_neither_saved_nor_trained_nor_in_training_mode():
    training, predecessor = make("gpt", start=0.5)
    training.train()
    assert not any(module.training for module in predecessor.modules())
    assert training.state_dict().keys() == {f"successor.{n}" for n in build("gpt", 2).state_dict()}


def test_the_successor_starts_with_the_first_layers():
    """As in the paper: the embeddings, the output and the first layers are the predecessor's."""
    predecessor, successor = build("gpt", 4, seed=1), build("gpt", 2)
    load_predecessor(successor, predecessor, "large")
    weights = predecessor.state_dict()
    assert all(torch.equal(value, weights[n]) for n, value in successor.state_dict().items())


def test_systems_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match=r"a divisor of 4, got 3; give --set layers=1 or 2\."):
        pair_stacks(build("gpt", 3), build("gpt", 4), "large")
    with pytest.raises(UserError, match="a divisor of 2, got 2"):
        pair_stacks(build("gpt", 2), build("gpt", 2), "large")
    for name in ("lstm", "transformer-xl", "xlnet"):
        with pytest.raises(UserError, match="applies only to systems with layers of attention"):
            pair_stacks(build(name, 1), build(name, 2), "large")
    wider = asdict(system_module("gpt").SIZES["tiny"]) | {"width": 32}
    with pytest.raises(UserError, match="in more than the number of layers"):
        load_predecessor(build("gpt", 2), build_system("gpt", wider, VOCABULARY, seed=0), "large")


# Runs -------------------------------------------------------------------------------------------

Losses = Callable[[Path], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def predecessor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "large"
    settings = {"layers": 4, "dropout": 0.2}
    train("gpt", data="grammar", out=out, size="tiny", steps=10, settings=settings, quiet=True)
    return out


def test_a_run_of_the_smaller_system(predecessor: Path, tmp_path: Path):
    settings = {"layers": 2}
    small = tmp_path / "small"
    train(
        "gpt",
        data="grammar",
        out=small,
        predecessor=predecessor,
        steps=6,
        settings=settings,
        quiet=True,
    )
    model = load_run(small)
    assert model.config.system_config["layers"] == 2
    assert model.config.system_config["dropout"] == 0.2, "settings are the predecessor's"
    assert model.config.size == "tiny"
    assert model.tokenizer.fingerprint() == load_run(predecessor).tokenizer.fingerprint()
    record = model.config.predecessor
    assert record is not None and record.path == str(predecessor)
    assert (
        record.weights == json.loads((small / "config.json").read_text())["predecessor"]["weights"]
    )
    assert len(dict(named_stacks(model.system))["backbone.stack"].blocks) == 2
    again = tmp_path / "again"
    lmlab.train(**lmlab.read_config(small / "config.json", out=again, quiet=True))
    weights = [(run / "model.safetensors").read_bytes() for run in (small, again)]
    assert weights[0] == weights[1], "config.json repeats it"


def test_a_stopped_run_resumes_identically(predecessor: Path, tmp_path: Path, read_losses: Losses):
    """Stopped while modules are replaced: all later losses and weights are the same."""
    settings = {"layers": 2, "replacing_steps": 8, "log_every": 1, "checkpoint_steps": 3}
    options: dict[str, Any] = {"data": "grammar", "quiet": True}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for out, steps in ((whole, 12), (parts, 5)):
        train("gpt", out=out, predecessor=predecessor, settings=settings, steps=steps, **options)
    train("gpt", out=parts, resume=True, steps=12, **options)
    ours, theirs = (
        [x for x in read_losses(run) if x["event"] == "train"] for run in (parts, whole)
    )
    assert ours == theirs and len(ours) == 12
    trained = (run / "trainer" / "step-12" / "model.safetensors" for run in (whole, parts))
    first, second = (path.read_bytes() for path in trained)
    assert first == second


REFUSED = {
    "size": ({"size": "tiny"}, "--size does not apply with --predecessor"),
    "tokenizer": ({"tokenizer": "char"}, "the tokenizer is that of the predecessor"),
    "setting": ({"settings": {"soft_target_weight": 1}}, "applies only with --teacher RUN"),
    "width": ({"settings": {"layers": 2, "width": 32}}, "in more than the number of layers"),
    "sharded": (
        {"settings": {"layers": 2}, "distributed": "fsdp"},
        "--predecessor do not apply to --distributed fsdp; use ddp",
    ),
    "depth": ({}, "a divisor of 4, got 4; give --set layers=1 or 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_do_not_apply(case: str, predecessor: Path, tmp_path: Path):
    options, sentence = REFUSED[case]
    with pytest.raises(UserError, match=sentence):
        train("gpt", data="grammar", out=tmp_path / "x", predecessor=predecessor, **options)
    assert not (tmp_path / "x" / "config.json").exists()


def test_a_predecessor_of_another_system_is_refused(predecessor: Path, tmp_path: Path):
    with pytest.raises(UserError, match="is a run of gpt, and its layers can only be replaced by"):
        train("bert", data="grammar", out=tmp_path / "x", predecessor=predecessor)
