"""CogQA's training examples: inputs with gold spans (System 1), graphs with answers (System 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from lmlab.data.name_matching import find_entity_name, sentence_around
from lmlab.layers.span_pointers import NO_LABELS, SpanPositions, pointer_labels
from lmlab.models.cogqa import QuestionKind
from lmlab.tasks.multihop.cognitive_graph import CognitiveGraph, NodeEncoder, NodeInput
from lmlab.tasks.multihop.graph_expansion import ExpandedGraph
from lmlab.tasks.multihop.multihop_rows import Edge, MultihopRow

PointerLabels = list[list[int]]


@dataclass(frozen=True, kw_only=True, eq=False)
class SpanExample:
    """An input of System 1 with the gold positions of its pointers."""

    input: NodeInput
    labels: PointerLabels


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphExample:
    """A cognitive graph with its targets."""

    inputs: list[NodeInput]
    labels: list[PointerLabels]
    """The gold pointer positions of each node; none for candidate answers."""
    adjacency: Tensor
    kind: QuestionKind
    candidates: list[int]
    """Candidate answers of a special question; the two entities of any other."""
    target: int
    """Index of the correct candidate; 1 for yes and 0 for no."""
    semantics: Tensor | None = None
    """(N, W) System 1's semantic vectors of the nodes, if it is frozen."""


def gold_graph(row: MultihopRow) -> CognitiveGraph:
    """Gold graph plus negative nodes: irrelevant edges add wrong hops and wrong answers."""
    graph = CognitiveGraph()
    for name in row.start:
        graph.add(name, start=True)
    for a, b in (*row.path, *row.hops):
        _step(graph, row, (a, b), answer=row.kind == "special" and b == row.answer)
    for edge in row.irrelevant:
        _step(graph, row, edge, answer=False)
        if row.kind == "special":
            _step(graph, row, edge, answer=True)
    return graph


def _step(graph: CognitiveGraph, row: MultihopRow, edge: Edge, *, answer: bool) -> None:
    origin, text = graph.add(edge[0]), row.paragraphs[edge[0]]
    found = find_entity_name(text, edge[1])
    assert found is not None, "rows are checked"
    target = graph.add(edge[1], answer=answer)
    if origin != target:
        graph.connect(origin, target, sentence_around(text, *found))


def node_labels(row: MultihopRow, name: str, read: NodeInput) -> PointerLabels | None:
    """Gold pointer positions in a node's paragraph; None if they were truncated.

    k next hops share the probability equally. An entity without outgoing edges is irrelevant: its
    pointers are at position 0.
    """
    hops: list[SpanPositions] = []
    answer: SpanPositions | None = None
    for a, b in (*row.path, *row.hops):
        if a != name:
            continue
        found = find_entity_name(row.paragraphs[a], b)
        places = None if found is None else read.positions_of(*found)
        if places is None:
            return None
        if row.kind == "special" and b == row.answer:
            answer = places
        else:
            hops.append(places)
    return pointer_labels(hops, answer)


def node_inputs(
    row: MultihopRow, graph: CognitiveGraph, encoder: NodeEncoder
) -> tuple[list[NodeInput], list[PointerLabels | None]]:
    """System 1's input for each node, and its labels; none for candidate answers."""
    inputs, labels = [], []
    for place, node in enumerate(graph.nodes):
        read = encoder(row.text, graph.clues(place), row.paragraphs.get(node.name, ""))
        inputs.append(read)
        labels.append(NO_LABELS if node.answer else node_labels(row, node.name, read))
    return inputs, labels


def span_examples(
    rows: Sequence[MultihopRow], encoder: NodeEncoder
) -> tuple[list[SpanExample], int]:
    """The inputs of the gold graphs with their span labels, empty ones included.

    Also the number of dropped inputs, whose spans were truncated.
    """
    found: list[SpanExample] = []
    cut = 0
    for row in rows:
        graph = gold_graph(row)
        for node, read, labels in zip(graph.nodes, *node_inputs(row, graph, encoder), strict=True):
            if node.answer:
                continue
            if labels is None:
                cut += 1
            else:
                found.append(SpanExample(input=read, labels=labels))
    return found, cut


def graph_example(
    row: MultihopRow, encoder: NodeEncoder, grown: ExpandedGraph | None = None
) -> GraphExample | None:
    """The gold graph of a row, or an expanded one; None if the answer is not in it."""
    graph = gold_graph(row) if grown is None else grown.graph
    inputs, labels = node_inputs(row, graph, encoder)
    told = _told(row, graph)
    if told is None:
        return None
    candidates, target = told
    return GraphExample(
        inputs=inputs if grown is None else grown.inputs,
        labels=[NO_LABELS if each is None else each for each in labels],
        adjacency=graph.adjacency(),
        kind=row.kind,
        candidates=candidates,
        target=target,
        semantics=None if grown is None else grown.semantics,
    )


def _told(row: MultihopRow, graph: CognitiveGraph) -> tuple[list[int], int] | None:
    if row.kind == "special":
        right, candidates = graph.node_index(row.answer, answer=True), graph.answers()
        return None if right is None else (candidates, candidates.index(right))
    pair = [place for name in row.start[:2] if (place := graph.node_index(name)) is not None]
    if len(pair) < 2:
        return None
    if row.kind == "yes-no":
        return pair, int(row.answer == "yes")
    return pair, row.start[:2].index(row.answer)
