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
class _Expansion:
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

    def paragraph(self, node: int) -> str:
        """The paragraph of a node; empty if there is none."""
        name = self.names.get(self.graph.nodes[node].name.lower())
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
    # Lower-case names, computed once for paragraphs that questions share.
    names: dict[int, Mapping[str, str]] = {}
    for q in questions:
        if id(q.paragraphs) not in names:
            names[id(q.paragraphs)] = {name.lower(): name for name in q.paragraphs}
    expansions = [_Expansion(q, names[id(q.paragraphs)]) for q in questions]
    for expansion in expansions:
        expansion.begin()
    while pending := [(expansion, node) for expansion in expansions for node in expansion.frontier]:
        for expansion, node in pending:
            question, clues = expansion.question.text, expansion.graph.clues(node)
            expansion.inputs[node] = encoder(question, clues, expansion.paragraph(node))
        for expansion in expansions:
            expansion.frontier = []
        extracted = reader.extract([expansion.inputs[node].tokens for expansion, node in pending])
        for (expansion, node), spans in zip(pending, extracted, strict=True):
            expansion.semantics[node] = spans.semantics
            if not expansion.graph.nodes[node].answer:
                _expand(expansion, node, spans, limit=reader.settings.max_graph_nodes)
    return [_finished(expansion) for expansion in expansions]


def _expand(expansion: _Expansion, node: int, extracted: ExtractedSpans, *, limit: int) -> None:
    """Add the nodes and edges of the spans extracted from a node's paragraph."""
    for spans, answer in ((extracted.hops, False), (extracted.answers, True)):
        for span in spans:
            name, clue = _span_name(expansion, node, span)
            known = expansion.graph.node_index(name, answer=answer)
            if not name or known == node or (known is None and len(expansion.graph) >= limit):
                continue
            target = expansion.graph.add(name, answer=answer)
            new = expansion.graph.connect(node, target, clue, span.probability)
            if new and target not in expansion.frontier:
                expansion.frontier.append(target)


def _span_name(expansion: _Expansion, node: int, span: PointedSpan) -> tuple[str, str]:
    """The text of a span, and the sentence around it."""
    text, spans = expansion.paragraph(node), expansion.inputs[node].spans
    low, high = spans[span.first][0], spans[span.last][1]
    name = text[low:high].strip()
    return expansion.names.get(name.lower(), name), sentence_around(text, low, high)


def _finished(expansion: _Expansion) -> ExpandedGraph:
    nodes = range(len(expansion.graph))
    return ExpandedGraph(
        graph=expansion.graph,
        inputs=[expansion.inputs[node] for node in nodes],
        semantics=torch.stack([expansion.semantics[node] for node in nodes]),
    )
