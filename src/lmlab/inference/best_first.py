"""A* search for the most probable tokens of a latent-state tree model, states summed out.

    score(x) = log Σ_z exp(Σ_i E_i(z_i, x_i) + Σ_{i>0} link_i(z_parent(i), z_i))

Maximising over tokens with states summed out is NP-hard in general (Lyngsø and Pedersen 2002), but
well bounded: given a prefix of the tokens, no completion is better than

    log Σ_z exp(… + Σ_c U_c(z_parent(c))),   U_c(z) = max_x log Σ_z' exp(link_c(z, z') + E_c(z', x)
                                                      + Σ_{children d of c} U_d(z')),

where each open branch chooses its tokens as if its parent's state were known. Best-first search by
this bound (A*, Hart et al. 1968) finds fillings in the order of their scores. If states matter
little or are nearly certain, the bound is tight and few prefixes are expanded.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_EXPANSIONS = 20_000
"""Prefixes expanded before the exact search gives up."""
FALLBACK_BEAM = 64
"""Beam width of the fallback search."""
TINY = 1e-300
"""Lower limit of sums: a bound may be too high, but never too low."""


@dataclass(frozen=True)
class SearchResult:
    """Tokens, their score, and whether they are proven better than all later results."""

    tokens: tuple[int, ...]
    score: float
    proven: bool


@dataclass(frozen=True, eq=False)
class _Prefix:
    """Tokens of the first positions, and those of the next by their bounds, best first."""

    tokens: tuple[int, ...]
    bounds: list[float]
    order: list[int]


class BestFirstSearch:
    """A* search of one row: log-potentials E_i (K, V), links (K, K) to an earlier parent."""

    def __init__(
        self, tokens: Sequence[Tensor], links: Sequence[Tensor], parents: Sequence[int]
    ) -> None:
        """`links[i - 1]` connects position i to `parents[i]`; `parents[0]` is ignored."""
        self.links = [link.double() for link in links]
        self.parents = [-1, *parents[1:]]
        self.tokens = [potentials.double() for potentials in tokens]
        self.children: list[list[int]] = [[] for _ in tokens]
        for child, parent in enumerate(self.parents[1:], 1):
            self.children[parent].append(child)
        self.open = self._bounds()
        # Potentials with the bounds of open subtrees, as probabilities under a common factor.
        self.inside = [self._inside(position, self.open) for position in range(len(tokens))]
        self.heights = [potentials.amax(-1) for potentials in self.inside]
        self.numbers = [
            (potentials - height[:, None]).exp()
            for potentials, height in zip(self.inside, self.heights, strict=True)
        ]

    def ranked(self, count: int, *, max_expansions: int = MAX_EXPANSIONS) -> list[SearchResult]:
        """The `count` best, in order; by beam search, and not proven, if it takes too long."""
        results: list[SearchResult] = []
        for result in itertools.islice(self._best_first(max_expansions), count):
            if result is None:
                known = {proven.tokens for proven in results}
                beam = self._beam(max(FALLBACK_BEAM, count))
                return (results + [other for other in beam if other.tokens not in known])[:count]
            results.append(result)
        return results

    def _best_first(self, max_expansions: int) -> Iterator[SearchResult | None]:
        """All possible fillings, best first; then None if it takes too long."""
        tie = itertools.count()
        first = self._expand(())
        queue = [(-first.bounds[0], next(tie), first, 0)]
        expansions = 1
        while queue:
            bound, _, prefix, rank = heapq.heappop(queue)
            if bound == math.inf:
                return
            if rank + 1 < len(prefix.bounds):
                sibling = (-prefix.bounds[rank + 1], next(tie), prefix, rank + 1)
                heapq.heappush(queue, sibling)
            tokens = (*prefix.tokens, prefix.order[rank])
            if len(tokens) == len(self.tokens):
                yield SearchResult(tokens, -bound, proven=True)
                continue
            expansions += 1
            if expansions > max_expansions:
                yield None
                return
            child = self._expand(tokens)
            heapq.heappush(queue, (-child.bounds[0], next(tie), child, 0))

    def _beam(self, width: int) -> list[SearchResult]:
        """Beam search over prefixes by their bounds; the bounds of complete ones are scores."""
        beam: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
        for _ in self.tokens:
            extended = [
                ((*tokens, token), bound)
                for tokens, _ in beam
                for node in [self._expand(tokens)]
                for token, bound in zip(node.order[:width], node.bounds[:width], strict=True)
                if bound > -math.inf
            ]
            beam = sorted(extended, key=lambda item: -item[1])[:width]
        return [SearchResult(tokens, score, proven=False) for tokens, score in beam]

    def _bounds(self) -> dict[int, Tensor]:
        """(K,) U of each position but the root, by its parent's state."""
        bounds: dict[int, Tensor] = {}
        for position in range(len(self.tokens) - 1, 0, -1):
            inside = self._inside(position, bounds)
            height = inside.amax()
            link = self.links[position - 1]
            rise = link.amax(-1, keepdim=True)
            best = ((link - rise).exp() @ (inside - height).exp()).amax(-1)
            bounds[position] = best.clamp(min=TINY).log() + rise[:, 0] + height
        return bounds

    def _inside(self, position: int, bounds: dict[int, Tensor]) -> Tensor:
        """(K, V) a position's potentials with the bounds of its whole subtree."""
        inside = self.tokens[position]
        for child in self.children[position]:
            inside = inside + bounds[child][:, None]
        return inside

    def _expand(self, tokens: tuple[int, ...]) -> _Prefix:
        """Bounds of all tokens at the next position."""
        position = len(tokens)
        outside = self._outside(tokens) + self.heights[position]
        top = outside.amax()
        sums = (outside - top).exp() @ self.numbers[position]
        impossible = self.numbers[position].amax(0) == 0
        bounds = (sums.clamp(min=TINY).log() + top).masked_fill(impossible, -math.inf)
        values, order = bounds.sort(descending=True, stable=True)
        return _Prefix(tokens, values.tolist(), order.tolist())

    def _outside(self, tokens: tuple[int, ...]) -> Tensor:
        """(K,) contribution of everything outside the next position's subtree to its states."""
        position = len(tokens)
        if position == 0:
            return self.tokens[0].new_zeros(len(self.tokens[0]))
        # Each given position's potential with its subtree's, except on the path to the next one.
        path = self._path(position)
        messages: list[Tensor] = []
        for known, token in enumerate(tokens):
            potential = self.tokens[known][:, token]
            for child in self.children[known]:
                potential = potential + self.open[child] if child > position else potential
            messages.append(potential)
        for child in range(position - 1, 0, -1):
            if child not in path:
                messages[self.parents[child]] = messages[self.parents[child]] + torch.logsumexp(
                    self.links[child - 1] + messages[child], -1
                )
        outside = messages[0]
        for step in path[1:]:
            outside = torch.logsumexp(self.links[step - 1] + outside[:, None], 0)
            if step != position:
                outside = outside + messages[step]
        return outside

    def _path(self, position: int) -> list[int]:
        """The path from the root to a position."""
        path = [position]
        while path[-1] != 0:
            path.append(self.parents[path[-1]])
        return path[::-1]
