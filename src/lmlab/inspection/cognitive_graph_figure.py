"""Cognitive graph figure (CogQA): hops from left to right, the path to the answer marked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from lmlab.plotting.charts import shorten_label
from lmlab.plotting.figure import (
    COLOURS,
    FOREGROUND_COLOUR,
    FigureSpec,
    check_figure_suffix,
    numbered_name,
    printable_name,
    render_figure,
    write_figure,
)
from lmlab.plotting.figure_styling import TITLE
from lmlab.tasks.multihop.answer_selection import MultihopAnswer
from lmlab.tasks.multihop.cognitive_graph import CognitiveGraph

COLUMN_INCHES, ROW_INCHES = 2.2, 0.62
"""Inches between hops, and between nodes of a hop."""
CAPTION = (
    "Boxes are entities whose paragraphs were encoded, from those that the question names on "
    "the left to the last hops on the right; round ones are candidate answers. Numbers are "
    "the probabilities of following a paragraph's link. The path to the answer is thick, the "
    "answer has a colour of its own."
)


def cognitive_graph_figure(answer: MultihopAnswer, *, name: str = "graph") -> FigureSpec:
    """Figure of an answer's cognitive graph."""
    positions = layout_graph(answer.graph)
    columns = 1 + max((column for column, _ in positions), default=0)
    rows = 1 + max((row for _, row in positions), default=0)
    return FigureSpec(
        name=name,
        title=answer.question,
        caption=CAPTION,
        draw=lambda figure: _draw(figure, answer, positions),
        width=COLUMN_INCHES * columns,
        height=max(1.2, ROW_INCHES * (rows + 0.4)),
        text=answer.question,
        fixed_layout=True,
    )


def layout_graph(graph: CognitiveGraph) -> list[tuple[int, int]]:
    """Column (fewest hops from a start) and row of each node."""
    hops = dict.fromkeys(graph.starts(), 0)
    for _ in graph.nodes:
        for origin, target in graph.links:
            if origin in hops and hops[origin] + 1 < hops.get(target, len(graph) + 1):
                hops[target] = hops[origin] + 1
    filled: dict[int, int] = {}
    positions = []
    for node in range(len(graph)):
        column = hops.get(node, 0)
        positions.append((column, filled.get(column, 0)))
        filled[column] = filled.get(column, 0) + 1
    return positions


def write_cognitive_graphs(answers: Sequence[MultihopAnswer], path: Path) -> list[Path]:
    """Write the graph of each answer as .svg or .png, numbered if several; return the files."""
    check_figure_suffix(path)
    files = []
    for index, answer in enumerate(answers):
        name = numbered_name(path.stem, index, len(answers))
        files.append(path.with_stem(name))
        write_figure(
            files[-1],
            render_figure(cognitive_graph_figure(answer, name=name), pdf=path.suffix == ".pdf"),
        )
    return files


def _draw(figure: Figure, answer: MultihopAnswer, positions: Sequence[tuple[int, int]]) -> None:
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-0.5, max((column for column, _ in positions), default=0) + 0.5)
    axes.set_ylim(-max((row for _, row in positions), default=0) - 0.6, 0.6)
    axes.axis("off")
    axes.set_title(printable_name(answer.question), loc="left", fontsize=11).set_label(TITLE)
    boxes = [
        _draw_node(
            axes, positions[i], node.name, round_=node.answer, chosen=is_answer_node(answer, i)
        )
        for i, node in enumerate(answer.graph.nodes)
    ]
    path = answer_path_edges(answer)
    for (origin, target), link in answer.graph.links.items():
        ends = (boxes[origin], positions[origin]), (boxes[target], positions[target])
        _draw_link(axes, *ends, link.probability, marked=(origin, target) in path)


def is_answer_node(answer: MultihopAnswer, index: int) -> bool:
    """Whether a node is the answer."""
    node = answer.graph.nodes[index]
    return node.name.lower() == answer.answer.lower() and (
        node.answer or answer.kind == "alternative"
    )


def answer_path_edges(answer: MultihopAnswer) -> set[tuple[int, int]]:
    """Edges of the answer's path: the last leads to the answer, the others to entities.

    An entity and a candidate answer may share a name, so a step by names can match several edges.
    """
    nodes = answer.graph.nodes
    edges = set()
    for origin, target in answer.graph.links:
        step = nodes[origin].name, nodes[target].name
        last = bool(answer.path) and step == answer.path[-1]
        if step in answer.path and (answer.kind != "special" or nodes[target].answer == last):
            edges.add((origin, target))
    return edges


DrawnNode = tuple[Text, tuple[int, int]]
"""A node's text with its box, and its column and row."""


def _draw_link(
    axes: Axes, first: DrawnNode, second: DrawnNode, probability: float, *, marked: bool
) -> None:
    (origin_box, origin), (target_box, target) = first, second
    start, end = (origin[0], -origin[1]), (target[0], -target[1])
    # A back edge is curved, so that it does not cover the forward edge; so is its label.
    back = origin[0] >= target[0]
    axes.annotate(
        "",
        end,
        start,
        zorder=2,
        arrowprops={
            "arrowstyle": "-|>",
            "color": COLOURS[0] if marked else FOREGROUND_COLOUR,
            "linewidth": 2.2 if marked else 0.8,
            "patchA": origin_box.get_bbox_patch(),
            "patchB": target_box.get_bbox_patch(),
            "shrinkA": 1,
            "shrinkB": 1,
            "connectionstyle": "arc3,rad=0.12" if back else "arc3,rad=0",
        },
    )
    # Label beyond the middle, where the edges of a node are further apart and crossings are rare;
    # beside an edge that is not horizontal.
    along = 0.5 if origin[0] == target[0] else 0.62
    label = (start[0] + along * (end[0] - start[0]), start[1] + along * (end[1] - start[1]))
    level = origin[1] == target[1]
    axes.text(
        label[0] + (0 if level else 0.05),
        label[1] + (0.22 if back and level else 0.0),
        f"{probability:.2f}",
        fontsize=7,
        ha="center" if level else "left",
        va="bottom",
        color=FOREGROUND_COLOUR,
    )


def _draw_node(
    axes: Axes, position: tuple[int, int], name: str, *, round_: bool, chosen: bool
) -> Text:
    return axes.text(
        position[0],
        -position[1],
        shorten_label(printable_name(name)),
        ha="center",
        va="center",
        fontsize=9,
        color="white",
        zorder=1,  # before the edges, which end at the boxes
        bbox={
            "boxstyle": "round,pad=0.4,rounding_size=0.9" if round_ else "round,pad=0.4",
            "facecolor": COLOURS[1] if chosen else COLOURS[2] if round_ else COLOURS[0],
            "edgecolor": "none",
        },
    )
