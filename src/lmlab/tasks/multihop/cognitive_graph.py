"""Cognitive graph (CogQA): entity nodes, candidate answers, edges with clues; input of a node."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.models.cogqa import SEPARATORS, require_end_token


@dataclass(frozen=True, kw_only=True)
class NodeInput:
    """`<s> question </s> clues </s> paragraph </s>`; clues and paragraph may be empty."""

    tokens: list[int]
    spans: list[tuple[int, int]]
    """Characters [low, high) of the paragraph of each token; (0, 0) elsewhere."""
    truncated: bool = False
    """Whether clues or paragraph were truncated."""

    def positions_of(self, low: int, high: int) -> tuple[int, int] | None:
        """First and last position of some characters of the paragraph; None if truncated."""
        positions = [p for p, (a, b) in enumerate(self.spans) if a < b and a < high and b > low]
        if not positions or self.spans[positions[-1]][1] < high:
            return None
        return positions[0], positions[-1]


class NodeEncoder:
    """Encodes question, clues and paragraph as at most `max_length` tokens."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary, max_length: int) -> None:
        self.start, self.end = vocabulary.bos, require_end_token(vocabulary)
        self.max_length = max_length
        self._encode = lru_cache(maxsize=65536)(tokenizer.encode_with_offsets)

    def __call__(self, question: str, clues: str, paragraph: str) -> NodeInput:
        """The question is never truncated; the paragraph is first, to no less than half of the
        rest, then the clues."""
        question_ids = self._encode(question)[0]
        max_tokens = self.max_length - 1 - SEPARATORS - len(question_ids)
        if max_tokens < 2:
            raise UserError(
                f"the question has {len(question_ids)} tokens, and this system takes at most "
                f"{self.max_length} with clues and a paragraph; shorten it, or train with a "
                "greater length."
            )
        clue_ids, (paragraph_ids, spans) = self._encode(clues)[0], self._encode(paragraph)
        max_paragraph = max(max_tokens - len(clue_ids), max_tokens // 2)
        text = paragraph_ids[:max_paragraph]
        hints = clue_ids[: max_tokens - len(text)]
        tokens = [self.start, *question_ids, self.end, *hints, self.end]
        no_spans = [(0, 0)] * len(tokens)
        return NodeInput(
            tokens=[*tokens, *text, self.end],
            spans=[*no_spans, *spans[:max_paragraph], (0, 0)],
            truncated=len(text) < len(paragraph_ids) or len(hints) < len(clue_ids),
        )


EdgeNames = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class GraphNode:
    """An entity to hop from, or a candidate answer."""

    name: str
    answer: bool = False
    start: bool = False


@dataclass(frozen=True, kw_only=True)
class GraphEdge:
    """An edge from one node to another."""

    clue: str
    """The sentence of the first node's paragraph that names the second."""
    probability: float = 1.0
    """Probability of the span's start by System 1."""


class CognitiveGraph:
    """Nodes in order of creation, and edges by node indices.

    A name may be both an entity and a candidate answer, which are two nodes. Case is ignored.
    """

    def __init__(self) -> None:
        self.nodes: list[GraphNode] = []
        self.links: dict[tuple[int, int], GraphEdge] = {}
        self._indices: dict[tuple[str, bool], int] = {}

    def __len__(self) -> int:
        return len(self.nodes)

    def node_index(self, name: str, *, answer: bool = False) -> int | None:
        """The index of a node; None if there is none."""
        return self._indices.get((name.lower(), answer))

    def add(self, name: str, *, answer: bool = False, start: bool = False) -> int:
        """The index of a node, which is created if missing."""
        key = (name.lower(), answer)
        if key not in self._indices:
            self._indices[key] = len(self.nodes)
            self.nodes.append(GraphNode(name=name, answer=answer, start=start))
        return self._indices[key]

    def connect(self, origin: int, target: int, clue: str, probability: float = 1.0) -> bool:
        """Add an edge; returns whether it is new."""
        if (origin, target) in self.links:
            return False
        self.links[origin, target] = GraphEdge(clue=clue, probability=probability)
        return True

    def step_probabilities(self) -> dict[EdgeNames, float]:
        """System 1's probability of each edge; the maximum of several between the same names."""
        probabilities: dict[EdgeNames, float] = {}
        for (origin, target), link in self.links.items():
            step = self.nodes[origin].name, self.nodes[target].name
            probabilities[step] = max(link.probability, probabilities.get(step, 0.0))
        return probabilities

    def clues(self, node: int) -> str:
        """The sentences that led to a node."""
        clues = [link.clue for (_, target), link in self.links.items() if target == node]
        return " ".join(dict.fromkeys(clues))

    def adjacency(self) -> Tensor:
        """(N, N) adjacency matrix, 1 for an edge from i to j."""
        matrix = torch.zeros(len(self), len(self))
        for origin, target in self.links:
            matrix[origin, target] = 1.0
        return matrix

    def answers(self) -> list[int]:
        """Indices of the candidate answers."""
        return [index for index, node in enumerate(self.nodes) if node.answer]

    def starts(self) -> list[int]:
        """Indices of the entities that the question names."""
        return [index for index, node in enumerate(self.nodes) if node.start]

    def best_path(self, goal: int) -> tuple[EdgeNames, ...]:
        """The most probable path from a start node, by the product of its edges' probabilities."""
        starts = self.starts()
        paths: dict[int, tuple[float, tuple[EdgeNames, ...]]] = dict.fromkeys(starts, (0.0, ()))
        for _ in self.nodes:
            for (origin, target), link in self.links.items():
                if origin not in paths or target in starts:
                    continue
                cost = paths[origin][0] - math.log(max(link.probability, 1e-12))
                if target not in paths or cost < paths[target][0]:
                    step = (self.nodes[origin].name, self.nodes[target].name)
                    paths[target] = (cost, (*paths[origin][1], step))
        return paths[goal][1] if goal in paths else ()

    def steps(self) -> tuple[EdgeNames, ...]:
        """All edges by names."""
        return tuple((self.nodes[a].name, self.nodes[b].name) for a, b in self.links)

    def as_dict(self) -> dict[str, Any]:
        return {
            "nodes": [
                {"name": node.name, "answer": node.answer, "start": node.start}
                for node in self.nodes
            ],
            "links": [
                {"from": a, "to": b, "clue": link.clue, "probability": link.probability}
                for (a, b), link in self.links.items()
            ],
        }
