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
        _add_edge(graph, row, (a, b), answer=row.kind == "special" and b == row.answer)
    for edge in row.irrelevant:
        _add_edge(graph, row, edge, answer=False)
        if row.kind == "special":
            _add_edge(graph, row, edge, answer=True)
    return graph


def _add_edge(graph: CognitiveGraph, row: MultihopRow, edge: Edge, *, answer: bool) -> None:
    origin, text = graph.add(edge[0]), row.paragraphs[edge[0]]
    match = find_entity_name(text, edge[1])
    assert match is not None, "rows are checked"
    target = graph.add(edge[1], answer=answer)
    if origin != target:
        graph.connect(origin, target, sentence_around(text, *match))


def node_labels(row: MultihopRow, name: str, node_input: NodeInput) -> PointerLabels | None:
    """Gold pointer positions in a node's paragraph; None if they were truncated.

    k next hops share the probability equally. An entity without outgoing edges is irrelevant: its
    pointers are at position 0.
    """
    hops: list[SpanPositions] = []
    answer: SpanPositions | None = None
    for a, b in (*row.path, *row.hops):
        if a != name:
            continue
        match = find_entity_name(row.paragraphs[a], b)
        positions = None if match is None else node_input.positions_of(*match)
        if positions is None:
            return None
        if row.kind == "special" and b == row.answer:
            answer = positions
        else:
            hops.append(positions)
    return pointer_labels(hops, answer)


def node_inputs(
    row: MultihopRow, graph: CognitiveGraph, encoder: NodeEncoder
) -> tuple[list[NodeInput], list[PointerLabels | None]]:
    """System 1's input for each node, and its labels; none for candidate answers."""
    inputs, labels = [], []
    for index, node in enumerate(graph.nodes):
        node_input = encoder(row.text, graph.clues(index), row.paragraphs.get(node.name, ""))
        inputs.append(node_input)
        labels.append(NO_LABELS if node.answer else node_labels(row, node.name, node_input))
    return inputs, labels


def span_examples(
    rows: Sequence[MultihopRow], encoder: NodeEncoder
) -> tuple[list[SpanExample], int]:
    """The inputs of the gold graphs with their span labels, empty ones included.

    Also the number of dropped inputs, whose spans were truncated.
    """
    examples: list[SpanExample] = []
    dropped = 0
    for row in rows:
        graph = gold_graph(row)
        encoded = node_inputs(row, graph, encoder)
        for node, node_input, labels in zip(graph.nodes, *encoded, strict=True):
            if node.answer:
                continue
            if labels is None:
                dropped += 1
            else:
                examples.append(SpanExample(input=node_input, labels=labels))
    return examples, dropped


def graph_example(
    row: MultihopRow, encoder: NodeEncoder, expanded: ExpandedGraph | None = None
) -> GraphExample | None:
    """The gold graph of a row, or an expanded one; None if the answer is not in it."""
    graph = gold_graph(row) if expanded is None else expanded.graph
    inputs, labels = node_inputs(row, graph, encoder)
    targets = _candidates_and_target(row, graph)
    if targets is None:
        return None
    candidates, target = targets
    return GraphExample(
        inputs=inputs if expanded is None else expanded.inputs,
        labels=[NO_LABELS if gold_labels is None else gold_labels for gold_labels in labels],
        adjacency=graph.adjacency(),
        kind=row.kind,
        candidates=candidates,
        target=target,
        semantics=None if expanded is None else expanded.semantics,
    )


def _candidates_and_target(row: MultihopRow, graph: CognitiveGraph) -> tuple[list[int], int] | None:
    if row.kind == "special":
        gold, candidates = graph.node_index(row.answer, answer=True), graph.answers()
        return None if gold is None else (candidates, candidates.index(gold))
    entities = [index for name in row.start[:2] if (index := graph.node_index(name)) is not None]
    if len(entities) < 2:
        return None
    if row.kind == "yes-no":
        return entities, int(row.answer == "yes")
    return entities, row.start[:2].index(row.answer)
