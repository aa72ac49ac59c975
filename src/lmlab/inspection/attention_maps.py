"""Attention maps of a Transformer: all heads of all layers, head view and sublayer norms.

After BertViz (Vig 2019): the model view shows a map for each layer and head, the head view a line
from each token to the tokens it attends to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lmlab.core.capture import NON_NEGATIVE, UNIT_INTERVAL
from lmlab.inspection.activations import LayerActivations, SentenceActivations, record_activations
from lmlab.inspection.capture_figures import safe_file_name
from lmlab.inspection.inspected_models import InspectedModel
from lmlab.plotting.charts import (
    BORDER_COLOUR,
    SMALL_CELL_INCHES,
    HeatMap,
    HeatMapAxis,
    Values,
    colour_scale,
    draw_colour_bar,
    draw_heat_maps,
    heat_maps_size,
    hide_spines,
    shorten_label,
)
from lmlab.plotting.figure import FigureSpec, add_legend, colour, join_remarks
from lmlab.plotting.figure_styling import TITLE

MAX_WORDS = 24
"""Most positions shown."""
MAX_LAYERS = 4
"""Most layers in the head view; of more, evenly spaced ones from first to last."""
MIN_LINE_WEIGHT = 0.15
"""Attention weights below this get no line."""
MAP_GAP = 1.6
"""Cells between the maps of two heads."""
WORD_LINE_INCHES = 0.23
"""Inches between two tokens."""
ATTENDED_AXIS_NAMES = {"time": "word", "source": "word", "slot": "slot"}
"""What the two ends of a line are called, by axis."""
LINE_SPAN_INCHES = 1.5
"""Width of a panel of lines, in inches."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionMaps:
    """Attention weights of all layers and heads on one sentence."""

    weights: Values
    """(layers, heads, rows, columns)"""
    layers: tuple[int, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    remark: str = ""


def attention_figures(subject: InspectedModel) -> list[FigureSpec]:
    """Attention figures of the first sentence; none without attention layers."""
    activations = record_activations(subject, subject.sentences[0])
    if activations is None:
        return []
    figures = []
    for series in activations.series():
        if "head" in series.axes and len(series.axes) == 4:
            figures += _series_figures(activations, series)
    return [*figures, *_norm_figures(activations)]


def _series_figures(activations: SentenceActivations, series: LayerActivations) -> list[FigureSpec]:
    maps = attention_maps(activations, series)
    figures = [_model_view(activations, series, maps)]
    if set(series.axes[2:]) <= set(ATTENDED_AXIS_NAMES):
        figures.append(_head_view(activations, series, maps))
    return figures


def attention_maps(activations: SentenceActivations, series: LayerActivations) -> AttentionMaps:
    """Attention weights of a series with the tokens of its positions."""
    weights = np.stack([c.values[0].double().cpu().numpy() for c in series.captures])
    rows, columns = (
        activations.words(series, axis, size)
        for axis, size in zip(series.axes[2:], weights.shape[2:], strict=True)
    )
    cut = max(len(rows), len(columns)) > MAX_WORDS
    return AttentionMaps(
        weights=weights[:, :, :MAX_WORDS, :MAX_WORDS],
        layers=series.layers,
        rows=rows[:MAX_WORDS],
        columns=columns[:MAX_WORDS],
        remark=f"Shown are the first {MAX_WORDS} positions." if cut else "",
    )


def _model_view(
    activations: SentenceActivations, series: LayerActivations, maps: AttentionMaps
) -> FigureSpec:
    layers, heads = maps.weights.shape[:2]
    row_cells, column_cells = len(maps.rows) + MAP_GAP, len(maps.columns) + MAP_GAP
    cell = max(0.03, min(0.085, 9.0 / (heads * column_cells)))
    caption = (
        "A map for each layer and each head: a row is a query position, from the first at "
        "the top, and shows its attention weights over the key positions, from the first at "
        "the left."
    )
    return FigureSpec(
        name=safe_file_name(f"{series.name} model view"),
        title=f"{series.name}, every head",
        caption=join_remarks((caption, maps.remark)),
        draw=partial(draw_attention_maps, maps=maps, title=f"{series.name}, every head"),
        width=cell * heads * column_cells,
        height=cell * layers * row_cells,
        text=activations.sentence.text,
    )


def draw_attention_maps(figure: Figure, maps: AttentionMaps, *, title: str) -> None:
    """Model view (BertViz): a grid of attention maps, one row per layer, one column per head."""
    layers, heads, rows, columns = maps.weights.shape
    axes = figure.add_axes((0, 0, 1, 1))
    scale = colour_scale(maps.weights, UNIT_INTERVAL)
    for layer in range(layers):
        for head in range(heads):
            left, top = head * (columns + MAP_GAP), layer * (rows + MAP_GAP)
            axes.imshow(
                maps.weights[layer, head],
                cmap=scale.colours,
                norm=scale.norm,
                interpolation="none",
                aspect="auto",
                extent=(left, left + columns, top + rows, top),
            )
            outline = [
                (left, top),
                (left + columns, top),
                (left + columns, top + rows),
                (left, top + rows),
            ]
            axes.add_line(
                Line2D(
                    *zip(*outline, outline[0], strict=True),
                    color=BORDER_COLOUR,
                    linewidth=0.6,
                    clip_on=False,
                )
            )
    axes.set_xlim(0, heads * (columns + MAP_GAP))
    axes.set_ylim(layers * (rows + MAP_GAP), 0)
    axes.set_xticks(
        [head * (columns + MAP_GAP) + columns / 2 for head in range(heads)],
        [f"head {head + 1}" if heads <= 8 else str(head + 1) for head in range(heads)],
        fontsize=8,
    )
    axes.xaxis.tick_top()
    axes.set_yticks(
        [layer * (rows + MAP_GAP) + rows / 2 for layer in range(layers)],
        [f"layer {layer}" for layer in maps.layers],
        fontsize=8,
    )
    axes.tick_params(length=0)
    hide_spines(axes)
    width, height = figure.get_size_inches()
    figure.text(0, 1 + 0.3 / height, title, fontsize=11, label=TITLE)
    draw_colour_bar(figure, scale, left=width)


def _head_view(
    activations: SentenceActivations, series: LayerActivations, maps: AttentionMaps
) -> FigureSpec:
    layers = evenly_spaced(len(maps.layers), MAX_LAYERS)
    margins = [_widest(maps.rows), _widest(maps.columns)]
    query, key = (ATTENDED_AXIS_NAMES[axis] for axis in series.axes[2:])
    caption = (
        f"Lines go from each {query} on the left to the {key}s on the right that it attends "
        "to, a colour for each head, stronger for more attention; weights below "
        f"{MIN_LINE_WEIGHT} are not shown."
    )
    if query != key:
        caption += f" {series.captures[0].caption}"
    if len(layers) < len(maps.layers):
        caption += f" Shown are {len(layers)} of {len(maps.layers)} layers."
    title = f"{series.name}, {query} to {key}"
    return FigureSpec(
        name=safe_file_name(f"{series.name} head view"),
        title=title,
        caption=join_remarks((caption, maps.remark)),
        draw=partial(draw_attention_lines, maps=maps, chosen=layers, title=title),
        width=len(layers) * (LINE_SPAN_INCHES + sum(margins) + 0.2) - 0.2,
        height=WORD_LINE_INCHES * max(len(maps.rows), len(maps.columns)),
        text=activations.sentence.text,
        fixed_layout=True,
    )


def evenly_spaced(count: int, max_count: int) -> tuple[int, ...]:
    """At most `max_count` of the indices 0 … count - 1, including the first and the last."""
    if count <= max_count:
        return tuple(range(count))
    return tuple(round(index * (count - 1) / (max_count - 1)) for index in range(max_count))


def _widest(words: Sequence[str]) -> float:
    return 0.09 * max(len(shorten_label(word)) for word in words) + 0.12


def draw_attention_lines(
    figure: Figure, maps: AttentionMaps, chosen: Sequence[int], *, title: str
) -> None:
    """Head view (BertViz): tokens on both sides, lines between them, one panel per chosen layer."""
    width, height = figure.get_size_inches()
    margins = (_widest(maps.rows), _widest(maps.columns))
    panel = LINE_SPAN_INCHES + sum(margins) + 0.2
    for index, layer in enumerate(chosen):
        left = (index * panel + margins[0]) / width
        axes = figure.add_axes((left, 0, LINE_SPAN_INCHES / width, 1))
        _draw_lines(axes, maps.weights[layer])
        axes.set_xlim(0, 1)
        axes.set_ylim(max(len(maps.rows), len(maps.columns)), 0)
        for words, x, side in ((maps.rows, -0.04, "right"), (maps.columns, 1.04, "left")):
            for row, word in enumerate(words):
                axes.text(x, row + 0.5, shorten_label(word), ha=side, va="center", fontsize=9)
        axes.set_title(f"layer {maps.layers[layer]}", fontsize=9)
        axes.axis("off")
    figure.text(0, 1 + 0.32 / height, title, fontsize=11, label=TITLE)
    heads = maps.weights.shape[1]
    handles = [Line2D([], [], color=colour(head), linewidth=2.5) for head in range(heads)]
    last = figure.axes[-1]
    add_legend(last, handles, [f"head {head + 1}" for head in range(heads)])
    legend = last.get_legend()
    assert legend is not None
    legend.set_bbox_to_anchor((1 + (margins[1] + 0.1) / LINE_SPAN_INCHES, 1.0))


def _draw_lines(axes: Axes, weights: Values) -> None:
    """Lines of (heads, rows, columns), slightly offset per head."""
    heads = len(weights)
    for head, map_ in enumerate(weights):
        rows, columns = np.nonzero(map_ >= MIN_LINE_WEIGHT)
        offset = 0.5 + 0.5 * ((head + 0.5) / heads - 0.5)
        ends = [
            ((0, row + offset), (1, column + offset))
            for row, column in zip(rows, columns, strict=True)
        ]
        colours = [
            (*to_rgb(colour(head)), float(min(1.0, map_[r, c])))
            for r, c in zip(rows, columns, strict=True)
        ]
        axes.add_collection(
            LineCollection(ends, colors=colours, linewidths=1.6, label=f"head {head + 1}")
        )


def _norm_figures(activations: SentenceActivations) -> list[FigureSpec]:
    """Norm of each sublayer's output at each position, one heat map per stack."""
    stacks: dict[str, dict[str, LayerActivations]] = {}
    for series in activations.series():
        if series.axes == ("batch", "time", "unit"):
            stacks.setdefault(series.where, {})[series.what] = series
    figures = []
    for stack, by_name in stacks.items():
        hidden_states = by_name.pop("hidden", None)
        outputs = [series_ for name, series_ in by_name.items() if name.endswith(" output")]
        # Of a hybrid's layers the first may have another mixer, whose output is named before.
        outputs.sort(key=lambda series_: series_.what == "feed-forward output")
        if hidden_states is not None and outputs:
            figures.append(_norms(activations, stack, hidden_states, outputs))
    return figures


def _norms(
    activations: SentenceActivations,
    stack: str,
    hidden_states: LayerActivations,
    outputs: Sequence[LayerActivations],
) -> FigureSpec:
    rows, names = [], []
    for layer in hidden_states.layers:
        after = np.maximum(_norm(hidden_states, layer), 1e-9)
        # Layers differ in a stack of attention and recurrence.
        for series in (series for series in outputs if layer in series.layers):
            rows.append(_norm(series, layer) / after)
            names.append(f"{layer} {series.what.removesuffix(' output')}")
    values = np.stack(rows)[:, :MAX_WORDS]
    words = activations.words(hidden_states, "time", len(rows[0]))[:MAX_WORDS]
    grid = HeatMap(
        values=values,
        rows=HeatMapAxis(name="layer and sublayer", labels=tuple(names), max_label_length=24),
        columns=HeatMapAxis(name="position", labels=words),
        cell=SMALL_CELL_INCHES if len(names) > 16 else HeatMap.cell,
        bounds=NON_NEGATIVE,
    )
    width, height = heat_maps_size([grid])
    title = f"{stack} sublayer output norms".strip()
    return FigureSpec(
        name=safe_file_name(f"{stack} sublayers"),
        title=title,
        caption="Norm of the vector that each sublayer adds at each position, relative to "
        "the vector after its layer: 1 is equal; a sublayer near 0 does nothing "
        "there.",
        draw=partial(draw_heat_maps, grids=[grid], title=title),
        width=width,
        height=height,
        text=activations.sentence.text,
    )


def _norm(series: LayerActivations, layer: int) -> Values:
    """(T,) the norm of each position's vector in one layer."""
    values = series.captures[series.layers.index(layer)].values[0].double().norm(dim=-1)
    return np.asarray(values.cpu().numpy(), dtype=np.float64)
