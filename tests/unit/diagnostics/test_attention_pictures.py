"""Attention of Transformers: the right numbers at the right words, and no picture a layer."""

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


def subject_of(folder: Path, system: str, text: str = TEXT) -> InspectedModel:
    run = folder / system
    if not run.exists():
        lmlab.train(system, data="grammar", out=run, size="tiny", steps=2, quiet=True)
    return make_inspected_model(load_run(run), [text])


def names(pictures: list) -> list[str]:
    return [picture.name for picture in pictures]


def test_a_left_to_right_model_has_its_inputs_at_both_sides(folder: Path) -> None:
    """Inputs are <s> … the last word, without </s>; nobody looks ahead; rows sum to one."""
    looked = record_activations(subject_of(folder, "gpt"), subject_of(folder, "gpt").sentences[0])
    assert looked is not None
    [series] = [each for each in looked.series() if each.what == "attention"]
    maps = attention_maps(looked, series)
    assert maps.rows == maps.columns == ("<s>", *CONTENT)
    assert maps.weights.shape == (2, 2, 4, 4)
    assert not maps.weights[..., np.triu(np.ones((4, 4), dtype=bool), 1)].any()
    np.testing.assert_allclose(maps.weights.sum(-1), 1, atol=1e-6)


def test_a_masked_model_sees_the_whole_text_with_nothing_hidden(folder: Path) -> None:
    subject = subject_of(folder, "roberta")
    looked = record_activations(subject, subject.sentences[0])
    assert looked is not None
    [series] = [each for each in looked.series() if each.what == "attention"]
    assert attention_maps(looked, series).rows == ("<s>", *CONTENT, "</s>")
    direct = subject.system.backbone.capture_internals(looked.view)["layer 2 attention"].values[0]
    np.testing.assert_allclose(attention_maps(looked, series).weights[1], direct.numpy(), atol=1e-6)


def test_an_encoder_decoder_has_the_words_of_each_side(folder: Path) -> None:
    """Trained without pairs its source is empty: <s> </s>."""
    subject = subject_of(folder, "transformer")
    looked = record_activations(subject, subject.sentences[0])
    assert looked is not None
    found = {
        each.name: attention_maps(looked, each) for each in looked.series() if "head" in each.axes
    }
    assert set(found) == {"encoder attention", "decoder attention", "decoder source attention"}
    assert found["encoder attention"].rows == ("<s>", "</s>")
    assert found["decoder attention"].columns == ("<s>", *CONTENT)
    across = found["decoder source attention"]
    assert (across.rows, across.columns) == (("<s>", *CONTENT), ("<s>", "</s>"))


def test_a_translator_looks_at_its_source(tmp_path: Path) -> None:
    """Without a text, pairs of the run's own corpus are shown, each with its source."""
    rows = [f"ein Hund sieht {n}\ta dog sees {n}" for n in ("mich", "dich", "uns", "euch") * 10]
    (tmp_path / "pairs.tsv").write_text("\n".join(rows), encoding="utf-8")
    out = tmp_path / "run"
    lmlab.train(
        "transformer", data=str(tmp_path / "pairs.tsv"), out=out, size="tiny", steps=2, quiet=True
    )
    subject = make_inspected_model(load_run(out))
    sentence = subject.sentences[0]
    looked = record_activations(subject, sentence)
    assert looked is not None and sentence.condition is not None
    across = {
        each.name: attention_maps(looked, each) for each in looked.series() if "head" in each.axes
    }["decoder source attention"]
    assert across.columns == ("<s>", *sentence.condition.split(), "</s>")
    assert across.rows == sentence.tokens[:-1]
    shown = show_objective(out).contents
    assert [cell.text for cell in shown.matrices[0].columns][1:4] == ["ein", "Hund", "sieht"]


def test_two_streams_and_spans_have_words_of_what_is_fed(folder: Path) -> None:
    subject = subject_of(folder, "xlnet")
    looked = record_activations(subject, subject.sentences[0])
    assert looked is not None
    found = {
        each.name: attention_maps(looked, each) for each in looked.series() if "head" in each.axes
    }
    assert set(found) == {"attention", "query attention"}
    assert all(maps.columns == ("<s>", *CONTENT, "</s>") for maps in found.values())


def test_an_image_and_its_text_go_through_one_stack() -> None:
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


def test_the_model_view_has_a_map_for_each_layer_and_head(folder: Path) -> None:
    subject = subject_of(folder, "gpt")
    looked = record_activations(subject, subject.sentences[0])
    assert looked is not None
    [series] = [each for each in looked.series() if each.what == "attention"]
    maps = attention_maps(looked, series)
    with canvas("test", width=4, height=4) as figure:
        draw_attention_maps(figure, maps, title="a")
    axes = figure.axes[0]
    assert len(axes.images) == 4
    assert [label.get_text() for label in axes.get_xticklabels()] == ["head 1", "head 2"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["layer 1", "layer 2"]
    for image, expected in zip(axes.images, maps.weights.reshape(4, 4, 4), strict=True):
        np.testing.assert_allclose(image.get_array(), expected)
    # Layer 2, head 1 stands below layer 1 and at the left.
    (left, _, _, top), (second_left, _, _, second_top) = (
        axes.images[place].get_extent() for place in (0, 2)
    )
    assert left == second_left and second_top > top


def test_the_head_view_has_a_line_for_each_weight_that_counts(folder: Path) -> None:
    subject = subject_of(folder, "gpt")
    looked = record_activations(subject, subject.sentences[0])
    assert looked is not None
    [series] = [each for each in looked.series() if each.what == "attention"]
    maps = attention_maps(looked, series)
    with canvas("test", width=6, height=2) as figure:
        draw_attention_lines(figure, maps, [0, 1], title="a")
    for layer, axes in enumerate(figure.axes):
        words = [text.get_text() for text in axes.texts]
        assert words == ["<s>", *CONTENT] * 2
        lines = [each for each in axes.collections if isinstance(each, LineCollection)]
        assert len(lines) == 2
        for head, each in enumerate(lines):
            weights = maps.weights[layer, head]
            strong = weights[weights >= MIN_LINE_WEIGHT]
            assert len(each.get_segments()) == len(strong)
            paints = each.get_color()
            assert all(same_color(tuple(p[:3]), to_rgb(colour(head))) for p in paints)
            np.testing.assert_allclose([paint[3] for paint in paints], strong)


def test_layers_are_not_drawn_one_by_one(folder: Path) -> None:
    """A gpt of two layers reveals thirteen values, and three pictures come of them."""
    subject = subject_of(folder, "gpt")
    assert collected_capture_figures(subject) == []
    pictures = attention_figures(subject)
    assert names(pictures) == ["attention-model-view", "attention-head-view", "sublayers"]
    assert all(picture.text == TEXT for picture in pictures)
    drawn = render_figure(pictures[-1])
    assert all(f">{row}<" in drawn.svg for row in ("1 attention", "2 feed-forward", "sleeps"))


def test_words_that_look_at_slots_have_lines_to_their_names(folder: Path) -> None:
    """A star's word looks at five slots; a set's points look at words and are looked at."""
    star, gather, spread = (
        next(each for each in attention_figures(subject_of(folder, system)) if each.name == name)
        for system, name in (
            ("star-transformer", "ring-attention-head-view"),
            ("set-transformer", "gathering-attention-head-view"),
            ("set-transformer", "spreading-attention-head-view"),
        )
    )
    sides = {}
    for picture in (star, gather, spread):
        with canvas("test", width=picture.width, height=picture.height) as figure:
            picture.draw(figure)
        sides[picture.title] = [text.get_text() for text in figure.axes[0].texts]
    words, points = ["<s>", *CONTENT, "</s>"], [f"point {n}" for n in (1, 2, 3, 4)]
    assert sides == {
        "ring attention, word to slot": [
            *words, "1 before", "itself", "1 behind", "its input", "the relay",
        ],
        "gathering attention, slot to word": [*points, *words],
        "spreading attention, word to slot": [*words, *points],
    }  # fmt: skip


def test_norms_are_the_lengths_beside_the_layers_output(folder: Path) -> None:
    subject = subject_of(folder, "gpt")
    looked = record_activations(subject, subject.sentences[0])
    assert looked is not None
    added = looked.captures["layer 1 attention output"].values[0].double().norm(dim=-1)
    after = looked.captures["layer 1 hidden"].values[0].double().norm(dim=-1)
    picture = attention_figures(subject)[-1]
    with canvas("test", width=picture.width, height=picture.height) as figure:
        picture.draw(figure)
    held = np.asarray(figure.axes[0].images[0].get_array())
    assert held.shape == (4, 4)  # two sublayers of two layers, four places
    np.testing.assert_allclose(held[0], (added / after).numpy(), rtol=1e-6)


def test_a_system_without_attention_has_none(folder: Path) -> None:
    assert attention_figures(subject_of(folder, "lstm")) == []


def test_a_long_sentence_is_cut_and_says_so(folder: Path) -> None:
    subject = subject_of(folder, "gpt", " ".join(CONTENT * 12))
    model_view, head_view, _ = attention_figures(subject)
    assert f"the first {MAX_WORDS} positions" in model_view.caption
    assert f"the first {MAX_WORDS} positions" in head_view.caption


def test_of_many_layers_some_from_first_to_last_are_drawn() -> None:
    assert evenly_spaced(3, MAX_LAYERS) == (0, 1, 2)
    assert evenly_spaced(12, 4) == (0, 4, 7, 11)


def test_series_are_found_by_name() -> None:
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
    # An LSTM's gates stay, whatever they are called.
    assert list(captures_without_layers({"layer 1 hidden": gate})) == ["layer 1 hidden"]
