"""Attention figures of Transformers: weights and labels, grouped over layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from matplotlib.colors import same_color, to_rgb

import lmlab
from lmlab.core.attention_mask import CausalMask, FullMask
from lmlab.core.capture import Capture
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.inspection.activations import (
    captures_without_layers,
    group_by_layer,
    record_activations,
    stack_input_words,
)
from lmlab.inspection.attention_maps import (
    MAX_LAYERS,
    MAX_WORDS,
    MIN_LINE_WEIGHT,
    attention_figures,
    attention_maps,
    draw_attention_lines,
    draw_attention_maps,
    evenly_spaced,
)
from lmlab.inspection.capture_collection import collected_capture_figures
from lmlab.inspection.inspected_models import InspectedModel, TokenNames, make_inspected_model
from lmlab.objective_figures.objective_figure import show_objective
from lmlab.plotting.figure import canvas, colour, render_figure
from lmlab.training.run_folder import load_run

TEXT = "the cat sleeps"
CONTENT = ["the", "cat", "sleeps"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attention")


def inspected_run(folder: Path, system: str, text: str = TEXT) -> InspectedModel:
    run = folder / system
    if not run.exists():
        lmlab.train(system, data="grammar", out=run, size="tiny", steps=2, quiet=True)
    return make_inspected_model(load_run(run), [text])


def names(specs: list) -> list[str]:
    return [spec.name for spec in specs]


def test_causal_attention_map_is_labelled_by_inputs(folder: Path) -> None:
    """Inputs are <s> … the last word, without </s>; the mask is causal; rows sum to one."""
    recorded = record_activations(
        inspected_run(folder, "gpt"), inspected_run(folder, "gpt").sentences[0]
    )
    assert recorded is not None
    [series] = [candidate for candidate in recorded.series() if candidate.what == "attention"]
    maps = attention_maps(recorded, series)
    assert maps.rows == maps.columns == ("<s>", *CONTENT)
    assert maps.weights.shape == (2, 2, 4, 4)
    assert not maps.weights[..., np.triu(np.ones((4, 4), dtype=bool), 1)].any()
    np.testing.assert_allclose(maps.weights.sum(-1), 1, atol=1e-6)


def test_masked_lm_attention_is_of_the_unmasked_text(folder: Path) -> None:
    inspected = inspected_run(folder, "roberta")
    recorded = record_activations(inspected, inspected.sentences[0])
    assert recorded is not None
    [series] = [candidate for candidate in recorded.series() if candidate.what == "attention"]
    assert attention_maps(recorded, series).rows == ("<s>", *CONTENT, "</s>")
    direct = inspected.system.backbone.capture_internals(recorded.view)["layer 2 attention"].values[
        0
    ]
    np.testing.assert_allclose(
        attention_maps(recorded, series).weights[1], direct.numpy(), atol=1e-6
    )


def test_encoder_decoder_attention_labels_of_each_side(folder: Path) -> None:
    """Trained without pairs its source is empty: <s> </s>."""
    inspected = inspected_run(folder, "transformer")
    recorded = record_activations(inspected, inspected.sentences[0])
    assert recorded is not None
    maps = {
        series.name: attention_maps(recorded, series)
        for series in recorded.series()
        if "head" in series.axes
    }
    assert set(maps) == {"encoder attention", "decoder attention", "decoder source attention"}
    assert maps["encoder attention"].rows == ("<s>", "</s>")
    assert maps["decoder attention"].columns == ("<s>", *CONTENT)
    across = maps["decoder source attention"]
    assert (across.rows, across.columns) == (("<s>", *CONTENT), ("<s>", "</s>"))


def test_cross_attention_is_labelled_by_source_tokens(tmp_path: Path) -> None:
    """Without a text, pairs of the run's own corpus are shown, each with its source."""
    rows = [f"ein Hund sieht {n}\ta dog sees {n}" for n in ("mich", "dich", "uns", "euch") * 10]
    (tmp_path / "pairs.tsv").write_text("\n".join(rows), encoding="utf-8")
    out = tmp_path / "run"
    lmlab.train(
        "transformer", data=str(tmp_path / "pairs.tsv"), out=out, size="tiny", steps=2, quiet=True
    )
    inspected = make_inspected_model(load_run(out))
    sentence = inspected.sentences[0]
    recorded = record_activations(inspected, sentence)
    assert recorded is not None and sentence.condition is not None
    across = {
        series.name: attention_maps(recorded, series)
        for series in recorded.series()
        if "head" in series.axes
    }["decoder source attention"]
    assert across.columns == ("<s>", *sentence.condition.split(), "</s>")
    assert across.rows == sentence.tokens[:-1]
    contents = show_objective(out).contents
    assert [cell.text for cell in contents.matrices[0].columns][1:4] == ["ein", "Hund", "sieht"]


def test_two_stream_attention_is_labelled_by_inputs(folder: Path) -> None:
    inspected = inspected_run(folder, "xlnet")
    recorded = record_activations(inspected, inspected.sentences[0])
    assert recorded is not None
    maps_by_name = {
        series.name: attention_maps(recorded, series)
        for series in recorded.series()
        if "head" in series.axes
    }
    assert set(maps_by_name) == {"attention", "query attention"}
    assert all(maps.columns == ("<s>", *CONTENT, "</s>") for maps in maps_by_name.values())


def test_stack_input_words_of_image_and_text() -> None:
    names = TokenNames(token=lambda id: f"w{id}", vocabulary=Vocabulary(size=9), symbols={})
    text = View(
        inputs=torch.tensor([[2, 5]]), lengths=torch.tensor([2]), attention_mask=CausalMask()
    )
    view = View(
        inputs=torch.zeros(1, 2, 4),
        lengths=torch.tensor([2]),
        attention_mask=FullMask(),
        decoder=text,
    )
    assert stack_input_words(view, "", names) == ("w2", "patch 1", "patch 2", "w5")
    assert stack_input_words(view, "encoder", names) == ("patch 1", "patch 2")
    assert stack_input_words(view, "decoder", names) == ("w2", "w5")


def test_model_view_has_a_map_per_layer_and_head(folder: Path) -> None:
    inspected = inspected_run(folder, "gpt")
    recorded = record_activations(inspected, inspected.sentences[0])
    assert recorded is not None
    [series] = [candidate for candidate in recorded.series() if candidate.what == "attention"]
    maps = attention_maps(recorded, series)
    with canvas("test", width=4, height=4) as figure:
        draw_attention_maps(figure, maps, title="a")
    axes = figure.axes[0]
    assert len(axes.images) == 4
    assert [label.get_text() for label in axes.get_xticklabels()] == ["head 1", "head 2"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["layer 1", "layer 2"]
    for image, expected in zip(axes.images, maps.weights.reshape(4, 4, 4), strict=True):
        np.testing.assert_allclose(image.get_array(), expected)
    # Layer 2, head 1 is below layer 1 and at the left.
    (left, _, _, top), (second_left, _, _, second_top) = (
        axes.images[index].get_extent() for index in (0, 2)
    )
    assert left == second_left and second_top > top


def test_head_view_has_a_line_per_weight_above_threshold(folder: Path) -> None:
    inspected = inspected_run(folder, "gpt")
    recorded = record_activations(inspected, inspected.sentences[0])
    assert recorded is not None
    [series] = [collection for collection in recorded.series() if collection.what == "attention"]
    maps = attention_maps(recorded, series)
    with canvas("test", width=6, height=2) as figure:
        draw_attention_lines(figure, maps, [0, 1], title="a")
    for layer, axes in enumerate(figure.axes):
        words = [text.get_text() for text in axes.texts]
        assert words == ["<s>", *CONTENT] * 2
        lines = [
            collection for collection in axes.collections if isinstance(collection, LineCollection)
        ]
        assert len(lines) == 2
        for head, collection in enumerate(lines):
            weights = maps.weights[layer, head]
            strong = weights[weights >= MIN_LINE_WEIGHT]
            assert len(collection.get_segments()) == len(strong)
            paints = collection.get_color()
            assert all(same_color(tuple(p[:3]), to_rgb(colour(head))) for p in paints)
            np.testing.assert_allclose([paint[3] for paint in paints], strong)


def test_layer_captures_are_grouped_into_three_figures(folder: Path) -> None:
    """A gpt of two layers has thirteen captures, which are grouped into three figures."""
    inspected = inspected_run(folder, "gpt")
    assert collected_capture_figures(inspected) == []
    specs = attention_figures(inspected)
    assert names(specs) == ["attention-model-view", "attention-head-view", "sublayers"]
    assert all(spec.text == TEXT for spec in specs)
    rendered = render_figure(specs[-1])
    assert all(f">{row}<" in rendered.svg for row in ("1 attention", "2 feed-forward", "sleeps"))


def test_sublayers_of_a_hybrid_are_in_the_order_of_their_computation(folder: Path) -> None:
    spec = attention_figures(inspected_run(folder, "hybrid"))[-1]
    with canvas("test", width=spec.width, height=spec.height) as figure:
        spec.draw(figure)
        rows = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert rows == ["1 attention", "1 feed-forward", "2 recurrence", "2 feed-forward"]


def test_star_and_set_transformer_attention_names_slots(folder: Path) -> None:
    """A star's word attends to five slots; a set's inducing points to words and vice versa."""
    star, gather, spread = (
        next(
            candidate
            for candidate in attention_figures(inspected_run(folder, system))
            if candidate.name == name
        )
        for system, name in (
            ("star-transformer", "ring-attention-head-view"),
            ("set-transformer", "gathering-attention-head-view"),
            ("set-transformer", "spreading-attention-head-view"),
        )
    )
    sides = {}
    for spec in (star, gather, spread):
        with canvas("test", width=spec.width, height=spec.height) as figure:
            spec.draw(figure)
        sides[spec.title] = [text.get_text() for text in figure.axes[0].texts]
    words, points = ["<s>", *CONTENT, "</s>"], [f"point {n}" for n in (1, 2, 3, 4)]
    assert sides == {
        "ring attention, word to slot": [
            *words, "1 before", "itself", "1 behind", "its input", "the relay",
        ],
        "gathering attention, slot to word": [*points, *words],
        "spreading attention, word to slot": [*words, *points],
    }  # fmt: skip


def test_sublayer_norms_are_relative_to_the_layer_output(folder: Path) -> None:
    inspected = inspected_run(folder, "gpt")
    recorded = record_activations(inspected, inspected.sentences[0])
    assert recorded is not None
    added = recorded.captures["layer 1 attention output"].values[0].double().norm(dim=-1)
    after = recorded.captures["layer 1 hidden"].values[0].double().norm(dim=-1)
    spec = attention_figures(inspected)[-1]
    with canvas("test", width=spec.width, height=spec.height) as figure:
        spec.draw(figure)
    ratios = np.asarray(figure.axes[0].images[0].get_array())
    assert ratios.shape == (4, 4)  # two sublayers of two layers, four positions
    np.testing.assert_allclose(ratios[0], (added / after).numpy(), rtol=1e-6)


def test_system_without_attention_has_no_attention_figures(folder: Path) -> None:
    assert attention_figures(inspected_run(folder, "lstm")) == []


def test_long_sentence_is_truncated_with_a_note(folder: Path) -> None:
    inspected = inspected_run(folder, "gpt", " ".join(CONTENT * 12))
    model_view, head_view, _ = attention_figures(inspected)
    assert f"the first {MAX_WORDS} positions" in model_view.caption
    assert f"the first {MAX_WORDS} positions" in head_view.caption


def test_evenly_spaced_layers_include_first_and_last() -> None:
    assert evenly_spaced(3, MAX_LAYERS) == (0, 1, 2)
    assert evenly_spaced(12, 4) == (0, 4, 7, 11)


def test_captures_are_grouped_by_layer_name() -> None:
    values = torch.zeros(1, 2, 3, 3)
    heads = Capture(values=values, axes=("batch", "head", "time", "source"), caption="x")
    gate = Capture(values=torch.zeros(1, 3, 4), axes=("batch", "time", "unit"), caption="x")
    captures = {
        "decoder layer 1 source attention": heads,
        "decoder layer 2 source attention": heads,
        "layer 10 hidden": gate,
        "input": gate,
        "copied": gate,
    }
    assert [(s.where, s.what, s.layers) for s in group_by_layer(captures)] == [
        ("decoder", "source attention", (1, 2)),
        ("", "hidden", (10,)),
    ]
    assert list(captures_without_layers(captures)) == ["copied"]
    # An LSTM's gates are not grouped, whatever their names.
    assert list(captures_without_layers({"layer 1 hidden": gate})) == ["layer 1 hidden"]
