"""Pairwise potentials between masked positions, and selection of a tree over them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PairwisePotentials(nn.Module):
    """A(a, b) = (Q_i v_a) · (K_j v_b), with matrices Q_i and K_j computed from the hidden states.

    Q_i = Q + U h_i reshaped, R × R, and K_j alike; v_a (R,) is the embedding of a state or a token.
    Q and K are initialised to the identity times √`first`, so that neighbours prefer equal states.
    Cost of all pairs of K states and C of the other: K C R.
    """

    def __init__(self, width: int, rank: int, *, first: float) -> None:
        super().__init__()
        self.rank = rank
        self.query = nn.Linear(width, rank * rank)
        self.key = nn.Linear(width, rank * rank)
        for side in (self.query, self.key):
            nn.init.normal_(side.weight, std=0.1 / width**0.5)
            with torch.no_grad():
                side.bias.copy_(torch.eye(rank).flatten() * first**0.5)

    def matrices(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(…, R, R) Q and K of hidden states (…, W)."""
        return self._matrix(self.query, hidden), self._matrix(self.key, hidden)

    def forward(self, earlier: Tensor, later: Tensor, vectors: Tensor) -> Tensor:
        """(…, K, K) of the states (K, R) at an earlier and a later position, both hidden (…, W)."""
        queries = vectors @ self._matrix(self.query, earlier).mT
        keys = vectors @ self._matrix(self.key, later).mT
        return queries @ keys.mT

    def _matrix(self, side: nn.Linear, hidden: Tensor) -> Tensor:
        matrix: Tensor = side(hidden)
        return matrix.unflatten(-1, (self.rank, self.rank))


class ParentSelection(nn.Module):
    """Parent selection: a tree over masked positions, from scores s_ij = q_i · k_j.

    Choosing edges freely might close a loop; a parent that must be earlier cannot: the best of the
    earlier positions form a spanning tree. The choice has no gradient; the strength 2 σ(s_ij) of
    the chosen edge has, and in training Gumbel noise on the scores explores other trees (cf. Corro
    and Titov 2019).
    """

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, inner)
        self.key = nn.Linear(width, inner)

    def forward(
        self, hidden: Tensor, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """(B, n) parents, 0 for the root, and (B, n - 1) strengths of the edges of the others."""
        count = hidden.shape[1]
        scores = self.query(hidden) @ self.key(hidden).mT / self.query.out_features**0.5
        earlier = torch.ones(count, count, dtype=torch.bool, device=hidden.device).tril(-1)
        chosen = scores.detach().masked_fill(~earlier, -torch.inf)
        if generator is not None:
            uniforms = torch.rand(scores.shape, generator=generator, device=generator.device)
            chosen = chosen - (-uniforms.clamp(1e-6, 1 - 1e-6).log()).log().to(scores)
        # The root has no earlier position; any number will do.
        parents = chosen.nan_to_num(neginf=-1e30).argmax(-1)
        strengths = 2 * scores.gather(-1, parents[..., None])[:, 1:, 0].sigmoid()
        return parents, strengths
