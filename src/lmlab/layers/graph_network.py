"""Graph neural network of CogQA's system 2, and its answer predictors."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class GraphNetwork(nn.Module):
    """Graph network with `rounds` of message passing by shared weights (Ding et al. 2019).

        Δ  = σ((A D⁻¹)ᵀ σ(X W₁))
        X' = σ(X W₂ + Δ)

    X (N, W) one row per node; A (N, N) is 1 where an edge leads from i to j; D_jj = Σ_i A_ij, so
    that a node receives the mean of its predecessors, or nothing if it has none. σ is GELU. A batch
    of graphs is one block-diagonal A. Cost O(N W² + N² W) per round.
    """

    def __init__(self, width: int, *, rounds: int = 2) -> None:
        super().__init__()
        self.rounds = rounds
        self.neighbour_map = nn.Linear(width, width, bias=False)
        self.self_map = nn.Linear(width, width, bias=False)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """(N, W) from nodes (N, W) and the adjacency matrix A (N, N)."""
        adjacency = edges.to(nodes)
        incoming = (adjacency / adjacency.sum(0).clamp(min=1)).T
        for _ in range(self.rounds):
            change = F.gelu(incoming @ F.gelu(self.neighbour_map(nodes)))
            nodes = F.gelu(self.self_map(nodes) + change)
        return nodes


class NodePredictor(nn.Module):
    """MLP score F(x) = w₂ · σ(W₁ x + b₁) + b₂ of a node, or of the difference of two."""

    def __init__(self, width: int, hidden: int = 0) -> None:
        super().__init__()
        self.inner = nn.Linear(width, hidden or width)
        self.outer = nn.Linear(hidden or width, 1)

    def forward(self, values: Tensor) -> Tensor:
        """(…,) of values (…, W)."""
        scores: Tensor = self.outer(F.gelu(self.inner(values))).squeeze(-1)
        return scores
