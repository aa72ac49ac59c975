"""Heads and layers silenced in turn, and the units of feed-forward layers by what fires them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import lmlab
from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.inspection.feed_forward_memories import (
    feed_forward_memory_figures,
    find_feed_forward_memories,
    recorded_activations,
)
from lmlab.inspection.head_importance import (
    disabled_parts,
    head_importance_figures,
    layer_stacks,
    mean_loss,
    measure_head_importance,
)
from lmlab.inspection.inspected_models import InspectedModel, make_inspected_model
from lmlab.plotting.figure import canvas, render_figure
from lmlab.training.run_folder import load_run

BATCH = Batch.collate([[2, 5, 6, 7, 3], [2, 6, 5, 3]], pad=0)


def build(name: str, **settings):
    module = system_module(name)
    torch.manual_seed(0)
    config = module.Config(width=16, layers=2, heads=2, length=16, dropout=0.0, **settings)
    return module.build(config, Vocabulary(size=9)).eval()


@torch.no_grad()
def loss_of(system) -> float:
    return float(system.loss(BATCH)[0].mean)


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> InspectedModel:
    out = tmp_path_factory.mktemp("importance") / "gpt"
    lmlab.train("gpt", data="grammar", out=out, size="tiny", steps=20, quiet=True)
    return make_inspected_model(load_run(out))


def test_a_silenced_head_costs_what_a_model_built_without_it_loses() -> None:
    system = build("gpt")
    [found] = measure_head_importance(system, [BATCH])
    assert found.heads.shape == (2, 2) and found.layers.shape == (2,)
    whole = loss_of(system)
    assert found.loss == pytest.approx(whole, abs=1e-6)
    without = build("gpt", disabled_heads=("2.1",))
    without.load_state_dict(system.state_dict())
    rise = loss_of(without) - whole
    assert found.heads[1, 0] == pytest.approx(rise, abs=1e-6)
    assert rise != 0
    passed_by = build("gpt", disabled_layers=(1,))
    passed_by.load_state_dict(system.state_dict())
    assert found.layers[0] == pytest.approx(loss_of(passed_by) - whole, abs=1e-6)


def test_a_head_that_writes_nothing_is_worth_nothing() -> None:
    """Its columns of the output map set to zero: silencing it changes no loss at all."""
    system = build("gpt")
    attention = system.backbone.stack.blocks[0].attention
    with torch.no_grad():
        attention.output.weight[:, attention.head_width :] = 0  # the second of two heads
    [found] = measure_head_importance(system, [BATCH])
    assert found.heads[0, 1] == 0
    assert found.heads[0, 0] != 0


def test_the_callers_model_is_as_it_was() -> None:
    system = build("gpt", disabled_heads=("1.2",)).train()
    stack = system.backbone.stack
    before = {name: value.clone() for name, value in system.state_dict().items()}
    measure_head_importance(system, [BATCH])
    assert (stack.disabled_layers, stack.disabled_heads) == (frozenset(), frozenset({(1, 2)}))
    assert system.training
    assert all(torch.equal(value, before[name]) for name, value in system.state_dict().items())
    with disabled_parts(stack, layers=[1]):
        assert stack.disabled_layers == {1}
    assert stack.disabled_layers == frozenset()


def test_a_layer_that_is_silent_anyway_has_no_figure() -> None:
    [found] = measure_head_importance(build("gpt", disabled_layers=(2,)), [BATCH])
    assert np.isnan(found.layers[1]) and np.isnan(found.heads[1]).all()
    assert np.isfinite(found.heads[0]).all()


def test_what_is_hidden_stays_the_same() -> None:
    """A masked model's loss is random; with one seed it is one number."""
    system = build("roberta", rate=0.4)
    assert mean_loss(system, [BATCH], seed=3) == mean_loss(system, [BATCH], seed=3)
    [found] = measure_head_importance(system, [BATCH], seed=3)
    assert found.loss == pytest.approx(mean_loss(system, [BATCH], seed=3), abs=1e-7)


def test_encoder_and_decoder_are_told_apart_and_shared_layers_counted() -> None:
    assert list(layer_stacks(build("transformer"))) == ["encoder", "decoder"]
    assert list(layer_stacks(build("gpt"))) == [""]
    [shared] = measure_head_importance(build("gpt", shared_layers=True), [BATCH])
    assert shared.heads.shape == (2, 2)
    # ELECTRA's generator is a network that its objective owns, and no part of this one.
    assert list(layer_stacks(build("electra"))) == [""]


def test_importance_is_drawn_as_layers_by_heads(subject: InspectedModel) -> None:
    heads, layers = head_importance_figures(subject)
    assert (heads.name, layers.name) == ("head-importance", "layer-importance")
    with canvas("test", width=heads.width, height=heads.height) as figure:
        heads.draw(figure)
    held = np.asarray(figure.axes[0].images[0].get_array())
    assert held.shape == (2, 2)
    assert heads.table is not None
    told = [[cell.value for cell in row[1:]] for row in heads.table.rows]
    np.testing.assert_allclose(held, told)
    assert "over 32 texts" in heads.caption
    assert len(render_figure(layers).svg) > 0


def test_listening_hears_every_layer_and_leaves_no_hook() -> None:
    system = build("gpt", shared_layers=True)
    stack = system.backbone.stack
    view = system.objective.view(Batch.collate([[2, 5, 6, 7, 3]], pad=0))
    with torch.no_grad(), recorded_activations(stack) as heard:
        system.backbone(view)
    assert sorted(heard) == [1, 2]
    assert all(calls[0].shape == (1, 4, 64) for calls in heard.values())
    assert not torch.equal(heard[1][0], heard[2][0])
    assert not stack.blocks[0].feed_forward._forward_hooks


def test_a_unit_that_was_made_to_fire_at_a_word_is_found(subject: InspectedModel) -> None:
    """Unit 7 of layer 1 reads one direction of what enters it: that of one word at its place."""
    system = subject.system
    block = system.backbone.stack.blocks[0]
    before = {name: value.clone() for name, value in block.state_dict().items()}
    sentence = subject.sentences[0]
    batch = Batch.collate([sentence.ids], pad=0)
    with torch.no_grad():
        entered = []
        hook = block.feed_forward.register_forward_pre_hook(lambda _, args: entered.append(args[0]))
        system.backbone(system.objective.view(batch))
        hook.remove()
        direction = entered[0][0, 2]
        block.feed_forward.up_projection.weight[6] = 50 * direction
        block.feed_forward.up_projection.bias[6] = -40 * float(direction @ direction)
        block.feed_forward.up_projection.weight[7:] = 0
        block.feed_forward.up_projection.weight[:6] = 0
    try:
        units = find_feed_forward_memories(subject, subject.sentences)
    finally:
        block.load_state_dict(before)
    [found] = [unit for unit in units if (unit.layer, unit.unit) == (1, 7)]
    best = found.triggers[0]
    assert best.word == sentence.tokens[2]
    assert best.before == sentence.tokens[:2]
    assert best.after == (sentence.tokens[3],)
    assert [t.value for t in found.triggers] == sorted(t.value for t in found.triggers)[::-1]


def test_memories_are_a_list_of_words(subject: InspectedModel) -> None:
    [picture] = feed_forward_memory_figures(subject)
    assert picture.table is not None
    assert picture.table.header == ("layer", "unit", "selectivity", "fires at", "by")
    layers = [row[0].shown for row in picture.table.rows]
    assert set(layers) == {"1", "2"}
    leading = picture.table.rows[0][3].shown
    assert leading.count("[") == leading.count("]") == 1
    assert leading in render_figure(picture).svg


def test_a_system_without_layers_has_neither(tmp_path: Path) -> None:
    out = tmp_path / "ngram"
    lmlab.train("ngram", data="grammar", out=out, size="tiny", quiet=True)
    other = make_inspected_model(load_run(out))
    assert head_importance_figures(other) == [] == feed_forward_memory_figures(other)
