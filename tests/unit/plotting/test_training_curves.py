"""Loss curves and bars: deterministic SVG, labels as text, correct coordinates."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from lmlab.plotting.figure import COLOURS, FONTS, FOREGROUND_COLOUR, colour, printable_name
from lmlab.plotting.training_curves import (
    LossBar,
    LossCurve,
    draw_loss_bars,
    draw_training_curves,
    loss_curve_from_metrics,
)

CURVES = (
    LossCurve(
        name="gru 首都", train=((10.0, 5.0), (20.0, 3.0)), held_out=((10.0, 4.0), (20.0, 2.5))
    ),
    LossCurve(
        name="ngram $n_5$",
        train=((20.0, 1.0),),
        held_out=((20.0, 2.75),),
        colour_index=1,
        single_epoch=True,
    ),
)
BARS = (
    LossBar(name="gru", value=2.0, low=1.5, high=2.5),
    LossBar(name="ngram", value=4.0, colour_index=1),
)


def draw_all() -> dict[str, str]:
    return {
        "curves": draw_training_curves(CURVES, floor=2.0),
        "bars": draw_loss_bars(BARS, floor=1.0),
    }


def texts(svg: str) -> list[str]:
    return [e.text or "" for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("text")]


def path_points(svg: str, path: str) -> list[tuple[float, float]]:
    """The points of a path."""
    match = re.search(path, svg, flags=re.DOTALL)
    assert match is not None
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", match[1])]


def test_rendering_is_deterministic() -> None:
    assert draw_all() == draw_all()


@pytest.mark.parametrize("name", ["curves", "bars"])
def test_svg_is_self_contained_and_theme_neutral(name: str) -> None:
    svg = draw_all()[name]
    root = ElementTree.fromstring(svg)  # it is well-formed
    assert "viewBox" in root.attrib
    assert FOREGROUND_COLOUR not in svg
    assert "currentColor" in svg
    assert FONTS in svg
    # No external file, no style that would leak into the page, no date.
    assert not re.search(r'(href|src)="(?!#)', svg)
    assert "<style" not in svg
    assert "<metadata" not in svg or "date" not in svg.lower()


def test_labels_are_kept_as_text() -> None:
    labels = texts(draw_all()["curves"])
    assert "gru 首都" in labels
    assert "ngram $n_5$" in labels  # names are not parsed as mathematics
    assert "entropy 2.000" in labels


def test_control_characters_in_names_give_valid_xml() -> None:
    svg = draw_loss_bars([LossBar(name="a\x00\x1bb<&>", value=1.0)])
    assert "a��b<&>" in texts(svg)


def test_bar_lengths_are_proportional_to_values() -> None:
    svg = draw_loss_bars(BARS)
    lengths = []
    for index in (0, 1):
        shade = re.escape(COLOURS[index])
        points = path_points(svg, rf'<path d="([^"]*)"[^>]*style="fill: {shade}')
        lengths.append(max(x for x, _ in points) - min(x for x, _ in points))
    assert math.isclose(lengths[1] / lengths[0], 4.0 / 2.0, rel_tol=1e-5)
    assert [text for text in texts(svg) if text.strip() in ("2.000", "4.000")]


def test_infinite_and_negative_losses_are_plotted() -> None:
    svg = draw_loss_bars(
        [LossBar(name="zero", value=math.inf), LossBar(name="energy", value=-3.0, colour_index=1)]
    )
    assert {"zero", "energy"} <= set(texts(svg))
    assert any("∞" in text for text in texts(svg))
    assert any("-3.000" in text for text in texts(svg))


def test_model_fitted_in_one_pass_is_a_horizontal_line() -> None:
    svg = draw_training_curves(CURVES)
    shade = re.escape(COLOURS[1])
    points = path_points(svg, rf'<path d="([^"]*)"[^>]*style="fill: none; stroke: {shade}')
    assert len(points) == 2
    assert points[0][1] == points[1][1]


def test_training_validated_once_is_a_point() -> None:
    lines = [
        {"step": 1, "event": "train", "loss": 5.0, "count": 10, "learning_rate": 0.1},
        {"step": 2, "event": "train", "loss": 3.0, "count": 10, "learning_rate": 0.1},
        {"step": 2, "event": "validation", "loss": 4.0, "count": 5},
    ]
    curve = loss_curve_from_metrics("lstm", lines)
    assert not curve.single_epoch
    assert not loss_curve_from_metrics(
        "lstm", [lines[0], lines[2]]
    ).single_epoch  # after one step of many
    assert loss_curve_from_metrics(
        "ngram", [{"step": 1, "event": "train", "loss": 1.0}]
    ).single_epoch
    line = rf'<path d="([^"]*)"[^>]*style="fill: none; stroke: {COLOURS[0]}'
    paths = re.findall(line, draw_training_curves([curve]))
    across = re.findall(line, draw_training_curves([replace(curve, single_epoch=True)]))
    assert len(across) == len(paths) + 1
    [added] = set(across) - set(paths)
    assert len({y for _, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", added)}) == 1


def test_empty_figures_are_rendered() -> None:
    assert "<svg" in draw_training_curves([])
    assert "<svg" in draw_loss_bars([])


def test_colours_repeat_with_dashed_lines() -> None:
    assert colour(len(COLOURS) + 2) == COLOURS[2]
    many = [
        LossCurve(name=str(i), train=(), held_out=((1, 1.0 + i), (2, i)), colour_index=i)
        for i in range(12)
    ]
    assert "stroke-dasharray" in draw_training_curves(many)


@pytest.mark.parametrize("held_out", [(), ((2.0, 3.8),), ((1.0, 4.0), (2.0, 3.8))])
def test_sampled_training_loss_is_named_in_the_legend(
    held_out: tuple[tuple[float, float], ...],
) -> None:
    losses = {"name": "nce", "train": ((1.0, 2.0), (2.0, 1.8)), "held_out": held_out}
    named = "nce (training, another loss)"
    assert texts(draw_training_curves([LossCurve(**losses, another_loss=True)])).count(named) == 1
    assert named not in texts(draw_training_curves([LossCurve(**losses)]))


def test_loss_curve_from_metrics() -> None:
    lines = [
        {"step": 1, "event": "train", "loss": 5.0, "count": 100},
        {"step": 5, "event": "train", "loss": 4.0, "count": 300},
        {"step": 5, "event": "validation", "loss": 4.5, "count": 50},
        {"step": 6, "event": "train", "loss": math.nan, "count": 300},
        {"step": 7, "event": "remark"},
    ]
    curve = loss_curve_from_metrics("run", lines)
    # Tokens are added up: 100, then 100 + 300; held-out losses are placed at the training step.
    assert curve.train == ((100.0, 5.0), (400.0, 4.0))
    assert curve.held_out == ((400.0, 4.5),)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Ġgr", "▁gr"),  # a byte-level vocabulary's spelling of " gr"
        ("Ã¼n", "ün"),
        ("Ġ", "␣"),
        ("café", "café"),  # letters that are no bytes of UTF-8 are unchanged
        ("中国", "中国"),
        ("<s>", "<s>"),
    ],
)
def test_byte_level_tokens_are_decoded_for_display(name: str, shown: str) -> None:
    assert printable_name(name) == shown
