"""Cognitive graph expansion, hop by hop (Ding et al. 2019, algorithm 1), many graphs at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lmlab.data.name_matching import sentence_around
from lmlab.layers.span_pointers import PointedSpan
from lmlab.models.cogqa import CogQAReader, ExtractedSpans
from lmlab.tasks.multihop.cognitive_graph import CognitiveGraph, NodeEncoder, NodeInput
from lmlab.tasks.multihop.multihop_rows import MultihopQuestion


@dataclass(frozen=True, kw_only=True, eq=False)
class ExpandedGraph:
    """An expanded graph, and System 1's semantic vectors of its nodes."""

    graph: CognitiveGraph
    inputs: list[NodeInput]
    """The input of each node."""
    semantics: Tensor
    """(N, W) semantic vectors of the nodes before System 2."""


@dataclass(eq=False)
class _Growing:
    """A question whose graph is being expanded."""

    question: MultihopQuestion
    names: Mapping[str, str]
    """Entities with a paragraph, by their lower-case names."""
    graph: CognitiveGraph = field(default_factory=CognitiveGraph)
    frontier: list[int] = field(default_factory=list)
    inputs: dict[int, NodeInput] = field(default_factory=dict)
    semantics: dict[int, Tensor] = field(default_factory=dict)

    def begin(self) -> None:
        self.frontier = [self.graph.add(name, start=True) for name in self.question.start]

    def paragraph(self, place: int) -> str:
        """The paragraph of a node; empty if there is none."""
        name = self.names.get(self.graph.nodes[place].name.lower())
        return "" if name is None else self.question.paragraphs[name]


def expand_graphs(
    reader: CogQAReader, encoder: NodeEncoder, questions: Sequence[MultihopQuestion]
) -> list[ExpandedGraph]:
    """Expand the graph of each question until the frontier is empty or the graph is full.

    Every frontier node is encoded with its clues; its hop spans become frontier nodes, its answer
    spans candidate answers. A node with a new incoming edge is encoded again, since its clues have
    changed. At `max_graph_nodes` nodes no more are added. The frontier nodes of all questions are
    batched.
    """
    names = _NameTables()
    growing = [_Growing(each, names.of(each.paragraphs)) for each in questions]
    for each in growing:
        each.begin()
    while due := [(each, place) for each in growing for place in each.frontier]:
        for each, place in due:
            asked, clues = each.question.text, each.graph.clues(place)
            each.inputs[place] = encoder(asked, clues, each.paragraph(place))
        for each in growing:
            each.frontier = []
        found = reader.extract([each.inputs[place].tokens for each, place in due])
        for (each, place), seen in zip(due, found, strict=True):
            each.semantics[place] = seen.semantics
            if not each.graph.nodes[place].answer:
                _expand(each, place, seen, limit=reader.settings.max_graph_nodes)
    return [_grown(each) for each in growing]


def _expand(each: _Growing, place: int, seen: ExtractedSpans, *, limit: int) -> None:
    """Add the nodes and edges of the spans extracted from a node's paragraph."""
    for spans, answer in ((seen.hops, False), (seen.answers, True)):
        for span in spans:
            name, clue = _named(each, place, span)
            known = each.graph.node_index(name, answer=answer)
            if not name or known == place or (known is None and len(each.graph) >= limit):
                continue
            target = each.graph.add(name, answer=answer)
            new = each.graph.connect(place, target, clue, span.probability)
            if new and target not in each.frontier:
                each.frontier.append(target)


def _named(each: _Growing, place: int, span: PointedSpan) -> tuple[str, str]:
    """The text of a span, and the sentence around it."""
    text, spans = each.paragraph(place), each.inputs[place].spans
    low, high = spans[span.first][0], spans[span.last][1]
    said = text[low:high].strip()
    return each.names.get(said.lower(), said), sentence_around(text, low, high)


def _grown(each: _Growing) -> ExpandedGraph:
    places = range(len(each.graph))
    return ExpandedGraph(
        graph=each.graph,
        inputs=[each.inputs[place] for place in places],
        semantics=torch.stack([each.semantics[place] for place in places]),
    )


class _NameTables:
    """Lower-case names of paragraph sets, computed once for a set that questions share."""

    def __init__(self) -> None:
        self._made: dict[int, Mapping[str, str]] = {}

    def of(self, paragraphs: Mapping[str, str]) -> Mapping[str, str]:
        if id(paragraphs) not in self._made:
            self._made[id(paragraphs)] = {name.lower(): name for name in paragraphs}
        return self._made[id(paragraphs)]
