"""Several tokens together, each tied to every other by a full matrix of pair potentials.

    p(x) ∝ exp(Σ_i φ_i(x_i) + Σ_{i<j} f(x_i) · M_ij f(x_j))

A Potts model. Its conditionals cost n V R, and so its pseudo-likelihood; its sum has V^n terms and
is taken only where those are few. Where they are many, draws are a Gibbs sampler's, marginals the
mean of its conditionals, and the likeliest filling the best that climbing from several draws finds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.joint_distribution import RankedFilling

MAX_ENUMERATED_FILLINGS = 2**22
"""Fillings of a row that are summed one by one."""
GIBBS_SWEEPS = 60
"""Rounds of the Gibbs sampler over all blanks; the first third is not counted in marginals."""
SEARCH_RESTARTS = 16
"""Draws that the search for the likeliest filling climbs from."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PottsJoint:
    """The distribution of n tokens for each of B rows: a `core.joint.TokenJoint`."""

    scores: Tensor
    """(B, n, V) φ; -inf where a token never comes."""
    ties: Tensor
    """(B, n, n, R, R) M_ij, of which those with i < j count."""
    vectors: Tensor
    """(V, R) f."""
    lengths: Tensor
    """(B,) places that each row has."""

    @property
    def real(self) -> Tensor:
        """(B, n) bool: whether a row has such a place."""
        places = torch.arange(self.scores.shape[1], device=self.scores.device)
        return places < self.lengths[:, None]

    @cached_property
    def symmetric_ties(self) -> Tensor:
        """(B, n, n, R, R) M_ij above the diagonal and M_jiᵀ below it; 0 where there is no pair."""
        count = self.scores.shape[1]
        above = torch.ones(count, count, dtype=torch.bool, device=self.scores.device).triu(1)
        pairs = self.real[:, :, None] & self.real[:, None, :] & above
        kept = torch.where(pairs[..., None, None], self.ties, 0.0)
        return kept + kept.transpose(1, 2).mT

    def conditionals(self, tokens: Tensor) -> Tensor:
        """(B, n, V) log p(x_i | all the others of `tokens` (B, n))."""
        pulls = torch.einsum("bijrs,bjs->bir", self.symmetric_ties, self.vectors[tokens])
        return F.log_softmax(self.scores + pulls @ self.vectors.T, -1)

    def pseudo_log_prob(self, tokens: Tensor) -> Tensor:
        """(B,) Σ_i log p(x_i | the others): what Besag (1975) maximises in place of log p(x)."""
        each = self.conditionals(tokens).gather(-1, tokens[..., None])[..., 0]
        return torch.where(self.real, each, 0.0).sum(1)

    def log_prob(self, tokens: Tensor) -> Tensor:
        """(B,) by the sum over all fillings, where they are few."""
        return torch.stack(
            [
                self._table(row)[tuple(tokens[row, :length].tolist())]
                for row, length in enumerate(self.lengths.tolist())
            ]
        )

    def prefix_log_probs(self, tokens: Tensor) -> Tensor:
        """(B, n) likewise, the tokens behind each place summed out."""
        found = torch.zeros(tokens.shape, dtype=self.scores.dtype, device=tokens.device)
        rows = []
        for row, length in enumerate(self.lengths.tolist()):
            table, terms = self._table(row), list(found[row].unbind())
            for place in range(length):
                begun = table[tuple(tokens[row, : place + 1].tolist())]
                terms[place] = torch.logsumexp(begun.flatten(), 0)
            rows.append(torch.stack(terms))
        return torch.stack(rows)

    def sample(self, *, generator: torch.Generator | None = None) -> Tensor:
        """(B, n) tokens: exact where fillings are few, else after some sweeps of Gibbs."""
        if not self._all_enumerable:
            return self._gibbs(generator)[0]
        drawn = torch.zeros(self.scores.shape[:2], dtype=torch.int64, device=self.scores.device)
        for row, length in enumerate(self.lengths.tolist()):
            if length:
                table = self._table(row)
                place = Categorical(table.flatten()).sample(generator=generator)
                index = torch.unravel_index(place, table.shape)
                drawn[row, :length] = torch.stack(list(index))
        return drawn

    def marginals(self, *, generator: torch.Generator | None = None) -> Tensor:
        """(B, n, V): exact where fillings are few, else the mean of Gibbs' conditionals.

        Asked twice without a generator it answers the same: its sweeps have a seed of their own.
        """
        with torch.no_grad():
            if not self._all_enumerable:
                return self._gibbs(generator or torch.Generator().manual_seed(0))[1]
            found = F.log_softmax(self.scores, -1)
            for row, length in enumerate(self.lengths.tolist()):
                table = self._table(row)
                for place in range(length):
                    others = [other for other in range(length) if other != place]
                    found[row, place] = torch.logsumexp(table, others) if others else table
            return found

    def ranked(self, row: int, count: int) -> list[RankedFilling]:
        """Best first; where fillings are many, the best that climbing finds, not proven.

        Their log_prob is then the pseudo-log-likelihood, as the sum is not known.
        """
        length = int(self.lengths[row])
        if length == 0:
            return [RankedFilling(tokens=(), log_prob=0.0)]
        if not self._enumerable(length):
            return self._hill_climb(row, length, count)
        with torch.no_grad():
            table = self._table(row)
            found = table.flatten().topk(min(count, table.numel()))
            places = torch.stack(list(torch.unravel_index(found.indices, table.shape)), -1)
        return [
            RankedFilling(tokens=tuple(tokens), log_prob=value)
            for tokens, value in zip(places.tolist(), found.values.tolist(), strict=True)
            if value > -math.inf
        ]

    def _enumerable(self, length: int) -> bool:
        return self.scores.shape[-1] ** length <= MAX_ENUMERATED_FILLINGS

    @property
    def _all_enumerable(self) -> bool:
        return self._enumerable(int(self.lengths.max()))

    def _table(self, row: int) -> Tensor:
        """(V, …, V) log-probabilities of all fillings of a row; () for a row without a blank."""
        length, size = int(self.lengths[row]), self.scores.shape[-1]
        if not self._enumerable(length):
            raise UserError(
                f"{size} tokens fill {length} blanks in {size}^{length} ways, which this system "
                f"would have to sum one by one; ask for fewer blanks (at most "
                f"{MAX_ENUMERATED_FILLINGS} "
                "ways), or use --set dependencies=chain or dependencies=tree."
            )
        if length == 0:
            return self.scores.new_zeros(())
        table = self.scores.new_zeros((size,) * length)
        for i in range(length):
            table = table + self.scores[row, i].view([size if k == i else 1 for k in range(length)])
            for j in range(i + 1, length):
                pair = self.vectors @ self.ties[row, i, j] @ self.vectors.T
                table = table + pair.view([size if k in (i, j) else 1 for k in range(length)])
        return table - torch.logsumexp(table.flatten(), 0)

    def _gibbs(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Tokens after all sweeps, and the log of the mean conditionals (B, n, V) on the way."""
        with torch.no_grad():
            drawn = Categorical(F.log_softmax(self.scores, -1)).sample(generator=generator)
            total = torch.zeros_like(self.scores)
            for sweep in range(GIBBS_SWEEPS):
                for place in range(drawn.shape[1]):
                    each = self.conditionals(drawn)[:, place]
                    drawn[:, place] = Categorical(each).sample(generator=generator)
                    if sweep >= GIBBS_SWEEPS // 3:
                        total[:, place] += each.exp()
        return drawn, (total / total.sum(-1, keepdim=True)).log()

    def _hill_climb(self, row: int, length: int, count: int) -> list[RankedFilling]:
        """Each place in turn to its best given the others, until none moves; several starts.

        Those that ended apart, best first by their unnormalised log-probability.
        """
        alone = PottsJoint(
            scores=self.scores[row, :length].detach().expand(SEARCH_RESTARTS, -1, -1),
            ties=self.ties[row, :length, :length].detach().expand(SEARCH_RESTARTS, -1, -1, -1, -1),
            vectors=self.vectors.detach(),
            lengths=self.lengths.new_full((SEARCH_RESTARTS,), length),
        )
        tokens = alone.sample(generator=torch.Generator().manual_seed(0))
        moved = True
        while moved:
            before = tokens.clone()
            for place in range(length):
                tokens[:, place] = alone.conditionals(tokens)[:, place].argmax(-1)
            moved = not torch.equal(before, tokens)
        pulls = torch.einsum("bijrs,bjs->bir", alone.symmetric_ties, alone.vectors[tokens])
        own = alone.scores.gather(-1, tokens[..., None])[..., 0].sum(1)
        energies = own + (alone.vectors[tokens] * pulls).sum((1, 2)) / 2
        values = alone.pseudo_log_prob(tokens).tolist()
        order = energies.argsort(descending=True, stable=True).tolist()
        ends = {tuple(tokens[place].tolist()): values[place] for place in order}
        return [
            RankedFilling(tokens=each, log_prob=value, kind="pseudo", proven=False)
            for each, value in list(ends.items())[:count]
        ]
