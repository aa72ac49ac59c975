"""The cognitive graph: entities that were hopped to, candidate answers, and the steps between."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

EdgeNames = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class GraphNode:
    """An entity that can be read on from, or a candidate answer."""

    name: str
    answer: bool = False
    start: bool = False


@dataclass(frozen=True, kw_only=True)
class GraphEdge:
    """A step from one node to another."""

    clue: str
    """The sentence of the first one's paragraph that names the second."""
    probability: float = 1.0
    """That of the span's start, as system 1 saw it."""


class CognitiveGraph:
    """Nodes in the order they were met, and links by the places of the two nodes.

    A name may be both an entity and a candidate answer, which are two nodes. Capitals do not count.
    """

    def __init__(self) -> None:
        self.nodes: list[GraphNode] = []
        self.links: dict[tuple[int, int], GraphEdge] = {}
        self._places: dict[tuple[str, bool], int] = {}

    def __len__(self) -> int:
        return len(self.nodes)

    def node_index(self, name: str, *, answer: bool = False) -> int | None:
        """Where a node stands; None where there is none."""
        return self._places.get((name.lower(), answer))

    def add(self, name: str, *, answer: bool = False, start: bool = False) -> int:
        """The place of a node, new where there was none."""
        key = (name.lower(), answer)
        if key not in self._places:
            self._places[key] = len(self.nodes)
            self.nodes.append(GraphNode(name=name, answer=answer, start=start))
        return self._places[key]

    def connect(self, origin: int, target: int, clue: str, probability: float = 1.0) -> bool:
        """Whether the link is a new one."""
        if (origin, target) in self.links:
            return False
        self.links[origin, target] = GraphEdge(clue=clue, probability=probability)
        return True

    def step_probabilities(self) -> dict[EdgeNames, float]:
        """How sure system 1 was of each step; of two links between the same names, the surer."""
        found: dict[EdgeNames, float] = {}
        for (origin, target), link in self.links.items():
            step = self.nodes[origin].name, self.nodes[target].name
            found[step] = max(link.probability, found.get(step, 0.0))
        return found

    def clues(self, place: int) -> str:
        """The sentences that led to a node."""
        found = [link.clue for (_, target), link in self.links.items() if target == place]
        return " ".join(dict.fromkeys(found))

    def adjacency(self) -> Tensor:
        """(N, N) 1 where a link leads from i to j."""
        matrix = torch.zeros(len(self), len(self))
        for origin, target in self.links:
            matrix[origin, target] = 1.0
        return matrix

    def answers(self) -> list[int]:
        """Places of the candidate answers."""
        return [place for place, node in enumerate(self.nodes) if node.answer]

    def starts(self) -> list[int]:
        """Places of the entities that the question names."""
        return [place for place, node in enumerate(self.nodes) if node.start]

    def best_path(self, goal: int) -> tuple[EdgeNames, ...]:
        """The likeliest way from a start to a node, by the product of its links' probabilities."""
        starts = self.starts()
        ways: dict[int, tuple[float, tuple[EdgeNames, ...]]] = dict.fromkeys(starts, (0.0, ()))
        for _ in self.nodes:
            for (origin, target), link in self.links.items():
                if origin not in ways or target in starts:
                    continue
                cost = ways[origin][0] - math.log(max(link.probability, 1e-12))
                if target not in ways or cost < ways[target][0]:
                    step = (self.nodes[origin].name, self.nodes[target].name)
                    ways[target] = (cost, (*ways[origin][1], step))
        return ways[goal][1] if goal in ways else ()

    def steps(self) -> tuple[EdgeNames, ...]:
        """All links by names."""
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
