"""Answer selection of CogQA: answers with their reasoning paths, and multi-hop metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.models.cogqa import CogQA, QuestionKind
from lmlab.tasks.finetuned_model import TaskAnswer
from lmlab.tasks.multihop.cognitive_graph import CognitiveGraph, EdgeNames, NodeEncoder
from lmlab.tasks.multihop.graph_expansion import ExpandedGraph, expand_graphs
from lmlab.tasks.multihop.multihop_rows import MultihopQuestion, MultihopRow
from lmlab.tasks.task import Row

QUESTIONS_PER_BATCH = 64
"""Questions whose graphs are expanded in one batch."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MultihopAnswer(TaskAnswer):
    """The answer to a multi-hop question with its evidence."""

    answer: str
    """Empty if there was no candidate."""
    question: str
    kind: QuestionKind
    probability: float
    """Probability of the answer among the candidates."""
    path: tuple[EdgeNames, ...]
    """The most probable path to the answer; all edges for a comparison of two entities."""
    graph: CognitiveGraph
    evidence: tuple[tuple[str, str], ...]
    """Entities on the path, each with the sentence that supports the step."""

    def __str__(self) -> str:
        return self.answer

    def as_dict(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "answer": self.answer,
            "kind": self.kind,
            "probability": self.probability,
            "path": [list(step) for step in self.path],
            "evidence": [list(pair) for pair in self.evidence],
            "graph": self.graph.as_dict(),
        }

    def details(self) -> list[str]:
        """One line per hop of the path with its clue."""
        hops = zip(self.path, self.evidence, strict=True)
        return [f"{origin} → {target}: {clue}" for (origin, target), (_, clue) in hops]

    def record(self, row: Row) -> dict[str, Any]:
        """Without the row's paragraphs."""
        return {**{k: v for k, v in row.items() if k != "paragraphs"}, "answered": self.as_dict()}


def answer_questions(
    system: CogQA, encoder: NodeEncoder, questions: Sequence[MultihopQuestion]
) -> list[MultihopAnswer]:
    """Expand the cognitive graph of each question and select an answer among its nodes."""
    answers: list[MultihopAnswer] = []
    for low in range(0, len(questions), QUESTIONS_PER_BATCH):
        batch = questions[low : low + QUESTIONS_PER_BATCH]
        graphs = expand_graphs(system.reader, encoder, batch)
        answers += [select_answer(system, q, g) for q, g in zip(batch, graphs, strict=True)]
    return answers


@torch.no_grad()
def select_answer(
    system: CogQA, question: MultihopQuestion, expanded: ExpandedGraph
) -> MultihopAnswer:
    """The answer of System 2 on an expanded graph."""
    graph, kind = expanded.graph, question.kind
    candidates = graph.answers() if kind == "special" else graph.starts()[:2]
    if kind != "special" and len(candidates) < 2:
        kind, candidates = "special", graph.answers()
    if not candidates:
        return _answered(question, kind, graph, answer="", probability=0.0, path=())
    with evaluation_mode(system):
        nodes = system.propagate(expanded.semantics.to(device_of(system)), graph.adjacency())
        scores = system.scores(nodes, kind, candidates)
    if kind == "special":
        probs = torch.softmax(scores, 0)
        best = int(probs.argmax())
        node = candidates[best]
        return _answered(
            question,
            kind,
            graph,
            answer=graph.nodes[node].name,
            probability=float(probs[best]),
            path=graph.best_path(node),
        )
    first_wins = bool(scores > 0)
    names = [graph.nodes[i].name for i in candidates] if kind == "alternative" else ["yes", "no"]
    return _answered(
        question,
        kind,
        graph,
        answer=names[0] if first_wins else names[1],
        probability=float(torch.sigmoid(scores if first_wins else -scores)),
        path=tuple(dict.fromkeys(graph.steps())),
    )


def _answered(
    question: MultihopQuestion,
    kind: QuestionKind,
    graph: CognitiveGraph,
    *,
    answer: str,
    probability: float,
    path: tuple[EdgeNames, ...],
) -> MultihopAnswer:
    clues = {
        (graph.nodes[a].name, graph.nodes[b].name): e.clue for (a, b), e in graph.links.items()
    }
    return MultihopAnswer(
        question=question.text,
        answer=answer,
        kind=kind,
        probability=probability,
        path=path,
        graph=graph,
        evidence=tuple((a, clues[a, b]) for a, b in path),
    )


def path_is_right(row: MultihopRow, path: Sequence[EdgeNames]) -> bool:
    """Whether the path is correct: complete, and every edge is one of the row's.

    For a special question one of the gold paths to the answer; for a comparison all gold edges.
    """
    steps, gold = {_lower(step) for step in path}, {_lower(step) for step in row.path}
    if row.kind != "special":
        return steps == gold
    return bool(path) and steps <= gold and path[-1][1].lower() == row.answer.lower()


def _lower(step: EdgeNames) -> EdgeNames:
    return step[0].lower(), step[1].lower()


def multihop_metrics(
    rows: Sequence[MultihopRow], answers: Sequence[MultihopAnswer]
) -> dict[str, float]:
    """Proportions of correct answers, correct paths and both; answers and both also per `sort`.

    `reached` is the proportion of graphs with the correct answer among the candidates.
    """
    outcomes = [
        (
            row.sort,
            row.answer.lower() == answer.answer.lower(),
            path_is_right(row, answer.path),
            row.kind != "special" or answer.graph.node_index(row.answer, answer=True) is not None,
        )
        for row, answer in zip(rows, answers, strict=True)
    ]
    count = max(len(outcomes), 1)
    metrics = {
        "answer": sum(answer_right for _, answer_right, _, _ in outcomes) / count,
        "path": sum(path for _, _, path, _ in outcomes) / count,
        "joint": sum(answer_right and path for _, answer_right, path, _ in outcomes) / count,
        "reached": sum(reached for *_, reached in outcomes) / count,
    }
    for sort in sorted({sort for sort, *_ in outcomes}):
        subset = [(answer_right, path) for name, answer_right, path, _ in outcomes if name == sort]
        metrics[f"answer {sort}"] = sum(answer_right for answer_right, _ in subset) / len(subset)
        metrics[f"joint {sort}"] = sum(map(all, subset)) / len(subset)
    return metrics
