"""Parse tree figures: the most probable tree of a sentence (Viterbi), for models with a grammar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lmlab.core.batch import Batch
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.inference.inside import ParseTree
from lmlab.inspection.inspected_models import InspectedModel, collate_sentences
from lmlab.plotting.charts import shorten_label
from lmlab.plotting.figure import COLOURS, FOREGROUND_COLOUR, FigureSpec, numbered_name
from lmlab.plotting.figure_styling import TITLE

WORD_INCHES = 0.4
"""Inches per word."""
LEVEL_INCHES = 0.42
"""Inches between the levels of a tree."""
MAX_WORDS = 40
"""Most words; longer sentences get no figure."""
CAPTION = (
    "The most probable parse of the sentence: each node is a nonterminal of the grammar and "
    "covers the words below it; nonterminals are numbered."
)


@dataclass(frozen=True, kw_only=True)
class TreeNode:
    """A node of a tree, or a word at a leaf."""

    label: str
    children: tuple[TreeNode, ...] = ()

    @property
    def leaves(self) -> tuple[str, ...]:
        """The words below it, left to right."""
        if not self.children:
            return (self.label,)
        return tuple(word for child in self.children for word in child.leaves)

    @property
    def height(self) -> int:
        """Edges to the deepest word."""
        return 1 + max(child.height for child in self.children) if self.children else 0


@runtime_checkable
class Parser(Protocol):
    """Gives the most probable tree of each sentence."""

    def best_tree(self, batch: Batch) -> list[ParseTree | None]: ...


def parse_tree_figures(subject: InspectedModel) -> list[FigureSpec]:
    """The most probable tree of each sentence; none if the system has no trees."""
    system, figures = subject.system, []
    if not isinstance(system, Parser):
        return []
    count = len(subject.sentences)
    for index, sentence in enumerate(subject.sentences):
        batch = collate_sentences(subject.system, [sentence]).to(device_of(system))
        with evaluation_mode(system):
            [tree] = system.best_tree(batch)
        if tree is not None and tree.last <= MAX_WORDS:
            node = to_tree_node(tree, sentence.tokens[1:])
            figures.append(
                parse_tree_figure(
                    node, name=numbered_name("tree", index, count), text=sentence.text
                )
            )
    return figures


def to_tree_node(tree: ParseTree, words: Sequence[str]) -> TreeNode:
    """A tree over positions as one over words; a leaf's nonterminal stands above its word."""
    if not tree.children:
        return TreeNode(label=str(tree.label), children=(TreeNode(label=words[tree.first]),))
    children = tuple(to_tree_node(child, words) for child in tree.children)
    return TreeNode(label=str(tree.label), children=children)


def parse_tree_figure(tree: TreeNode, *, name: str, text: str) -> FigureSpec:
    """Figure of a tree, with its words at the bottom."""
    return FigureSpec(
        name=name,
        title="likeliest tree",
        caption=CAPTION,
        draw=partial(draw_parse_tree, tree=tree),
        width=max(2.0, WORD_INCHES * len(tree.leaves)),
        height=LEVEL_INCHES * (tree.height + 0.5),
        text=text,
        fixed_layout=True,
    )


def draw_parse_tree(figure: Figure, tree: TreeNode, title: str = "likeliest tree") -> None:
    """Nodes as numbered circles, words at the bottom."""
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-0.5, len(tree.leaves) - 0.5)
    axes.set_ylim(-0.6, tree.height + 0.4)
    axes.axis("off")
    axes.set_title(title, loc="left", fontsize=11).set_label(TITLE)
    _draw_node(axes, tree, first=0)


def _draw_node(axes: Axes, node: TreeNode, *, first: int) -> float:
    """Draw the subtree, then the node; return its x position."""
    if not node.children:
        slanted = {"rotation": 50, "ha": "right", "va": "top", "rotation_mode": "anchor"}
        flat = {"ha": "center", "va": "top"}
        style = flat if len(node.label) <= 2 else slanted
        axes.text(first, -0.12, shorten_label(node.label), fontsize=9, **style)
        return float(first)
    xs, leaf = [], first
    for child in node.children:
        xs.append(_draw_node(axes, child, first=leaf))
        leaf += len(child.leaves)
    centre = (xs[0] + xs[-1]) / 2
    for child, x in zip(node.children, xs, strict=True):
        # Right-angled edges: slanted ones would cross the labels between.
        bottom = child.height if child.children else -0.05
        path = ((centre, x, x), (node.height, node.height, bottom))
        axes.plot(*path, color=FOREGROUND_COLOUR, linewidth=0.8, zorder=1)
    axes.annotate(
        node.label,
        (centre, node.height),
        ha="center",
        va="center",
        fontsize=8,
        color="white",
        zorder=3,
        bbox={"boxstyle": "round,pad=0.18", "facecolor": COLOURS[0], "edgecolor": "none"},
    )
    return centre
