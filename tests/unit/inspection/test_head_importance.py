"""Head and layer importance by ablation, and feed-forward memories by their triggers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import lmlab
from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.inspection.attention_maps import attention_figures
from lmlab.inspection.feed_forward_memories import (
    feed_forward_memory_figures,
    find_feed_forward_memories,
    recorded_activations,
)
from lmlab.inspection.head_importance import (
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
def inspected(tmp_path_factory: pytest.TempPathFactory) -> InspectedModel:
    out = tmp_path_factory.mktemp("importance") / "gpt"
    lmlab.train("gpt", data="grammar", out=out, size="tiny", steps=20, quiet=True)
    return make_inspected_model(load_run(out))


def test_head_importance_equals_loss_of_model_without_head() -> None:
    system = build("gpt")
    [importance] = measure_head_importance(system, [BATCH])
    assert importance.heads.shape == (2, 2) and importance.layers.shape == (2,)
    full_loss = loss_of(system)
    assert importance.loss == pytest.approx(full_loss, abs=1e-6)
    without = build("gpt", disabled_heads=("2.1",))
    without.load_state_dict(system.state_dict())
    rise = loss_of(without) - full_loss
    assert importance.heads[1, 0] == pytest.approx(rise, abs=1e-6)
    assert rise != 0
    without_layer = build("gpt", disabled_layers=(1,))
    without_layer.load_state_dict(system.state_dict())
    assert importance.layers[0] == pytest.approx(loss_of(without_layer) - full_loss, abs=1e-6)


def test_head_with_zero_output_has_zero_importance() -> None:
    """With its columns of the output projection zero, disabling it does not change the loss."""
    system = build("gpt")
    attention = system.backbone.stack.blocks[0].mixer
    with torch.no_grad():
        attention.output.weight[:, attention.head_width :] = 0  # the second of two heads
    [importance] = measure_head_importance(system, [BATCH])
    assert importance.heads[0, 1] == 0
    assert importance.heads[0, 0] != 0


def test_measuring_leaves_the_model_unchanged() -> None:
    system = build("gpt", disabled_heads=("1.2",)).train()
    stack = system.backbone.stack
    before = {name: value.clone() for name, value in system.state_dict().items()}
    measure_head_importance(system, [BATCH])
    assert (stack.disabled_layers, stack.disabled_heads) == (frozenset(), frozenset({(1, 2)}))
    assert system.training
    assert all(torch.equal(value, before[name]) for name, value in system.state_dict().items())
    with stack.disabled(layers=[1]):
        assert stack.disabled_layers == {1}
    assert stack.disabled_layers == frozenset()


def test_already_disabled_layer_has_nan_importance() -> None:
    [importance] = measure_head_importance(build("gpt", disabled_layers=(2,)), [BATCH])
    assert np.isnan(importance.layers[1]) and np.isnan(importance.heads[1]).all()
    assert np.isfinite(importance.heads[0]).all()


def test_masked_lm_loss_is_reproducible_with_a_seed() -> None:
    """A masked LM's loss is random; a seed makes it reproducible."""
    system = build("roberta", rate=0.4)
    assert mean_loss(system, [BATCH], seed=3) == mean_loss(system, [BATCH], seed=3)
    [importance] = measure_head_importance(system, [BATCH], seed=3)
    assert importance.loss == pytest.approx(mean_loss(system, [BATCH], seed=3), abs=1e-7)


def test_layer_stacks_of_encoder_decoder_and_shared_layers() -> None:
    assert list(layer_stacks(build("transformer"))) == ["encoder", "decoder"]
    assert list(layer_stacks(build("gpt"))) == [""]
    [shared] = measure_head_importance(build("gpt", shared_layers=True), [BATCH])
    assert shared.heads.shape == (2, 2)
    # ELECTRA's generator is a network that its objective owns, and no part of this one.
    assert list(layer_stacks(build("electra"))) == [""]


def test_importance_of_a_stack_of_attention_and_recurrence(tmp_path: Path) -> None:
    """Attention in layer 1 has heads, min-gru in layer 2 has none; both can be skipped."""
    system = build("hybrid")
    [importance] = measure_head_importance(system, [BATCH])
    assert np.isfinite(importance.layers).all()
    assert np.isfinite(importance.heads[0]).all() and np.isnan(importance.heads[1]).all()
    # A layer of a stacked RNN has no residual connection, and no part that can be ablated.
    recurrent = system_module("lstm")
    assert layer_stacks(recurrent.build(recurrent.SIZES["tiny"], Vocabulary(size=9))) == {}
    out = tmp_path / "hybrid"
    lmlab.train("hybrid", data="grammar", out=out, size="tiny", steps=5, quiet=True)
    model = make_inspected_model(load_run(out))
    assert [figure.name for figure in head_importance_figures(model)] == [
        "head-importance",
        "layer-importance",
    ]
    assert "sublayers" in [figure.name for figure in attention_figures(model)]


def test_head_importance_figure_is_layers_by_heads(inspected: InspectedModel) -> None:
    heads, layers = head_importance_figures(inspected)
    assert (heads.name, layers.name) == ("head-importance", "layer-importance")
    with canvas("test", width=heads.width, height=heads.height) as figure:
        heads.draw(figure)
    plotted = np.asarray(figure.axes[0].images[0].get_array())
    assert plotted.shape == (2, 2)
    assert heads.table is not None
    tabulated = [[cell.value for cell in row[1:]] for row in heads.table.rows]
    np.testing.assert_allclose(plotted, tabulated)
    assert "over 32 texts" in heads.caption
    assert len(render_figure(layers).svg) > 0


def test_recorded_activations_cover_layers_and_remove_hooks() -> None:
    system = build("gpt", shared_layers=True)
    stack = system.backbone.stack
    view = system.objective.view(Batch.collate([[2, 5, 6, 7, 3]], pad=0))
    with torch.no_grad(), recorded_activations(stack) as recorded:
        system.backbone(view)
    assert sorted(recorded) == [1, 2]
    assert all(calls[0].shape == (1, 4, 64) for calls in recorded.values())
    assert not torch.equal(recorded[1][0], recorded[2][0])
    assert not stack.blocks[0].feed_forward._forward_hooks


def test_memory_unit_set_to_fire_at_a_word_is_found(inspected: InspectedModel) -> None:
    """Unit 7 of layer 1 detects one input direction: that of one word at its position."""
    system = inspected.system
    block = system.backbone.stack.blocks[0]
    before = {name: value.clone() for name, value in block.state_dict().items()}
    sentence = inspected.sentences[0]
    batch = Batch.collate([sentence.ids], pad=0)
    with torch.no_grad():
        layer_inputs = []
        hook = block.feed_forward.register_forward_pre_hook(
            lambda _, args: layer_inputs.append(args[0])
        )
        system.backbone(system.objective.view(batch))
        hook.remove()
        direction = layer_inputs[0][0, 2]
        block.feed_forward.up_projection.weight[6] = 50 * direction
        block.feed_forward.up_projection.bias[6] = -40 * float(direction @ direction)
        block.feed_forward.up_projection.weight[7:] = 0
        block.feed_forward.up_projection.weight[:6] = 0
    try:
        units = find_feed_forward_memories(inspected, inspected.sentences)
    finally:
        block.load_state_dict(before)
    [memory] = [unit for unit in units if (unit.layer, unit.unit) == (1, 7)]
    best = memory.triggers[0]
    assert best.word == sentence.tokens[2]
    assert best.before == sentence.tokens[:2]
    assert best.after == (sentence.tokens[3],)
    assert [t.value for t in memory.triggers] == sorted(t.value for t in memory.triggers)[::-1]


def test_feed_forward_memories_are_a_table_of_triggers(inspected: InspectedModel) -> None:
    [spec] = feed_forward_memory_figures(inspected)
    assert spec.table is not None
    assert spec.table.header == ("layer", "unit", "selectivity", "fires at", "by")
    layers = [row[0].shown for row in spec.table.rows]
    assert set(layers) == {"1", "2"}
    leading = spec.table.rows[0][3].shown
    assert leading.count("[") == leading.count("]") == 1
    assert leading in render_figure(spec).svg


def test_ngram_has_no_importance_or_memory_figures(tmp_path: Path) -> None:
    out = tmp_path / "ngram"
    lmlab.train("ngram", data="grammar", out=out, size="tiny", quiet=True)
    other = make_inspected_model(load_run(out))
    assert head_importance_figures(other) == [] == feed_forward_memory_figures(other)
