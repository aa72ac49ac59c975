"""Potts model of n tokens: pseudo-likelihood, exact sums if small, else Gibbs and hill climbing.

    p(x) ∝ exp(Σ_i φ_i(x_i) + Σ_{i<j} f(x_i) · M_ij f(x_j))

Its conditionals, and so its pseudo-likelihood, cost n V R; its partition function has V^n terms and
is computed only if those are few. If they are many, samples come from a Gibbs sampler, marginals
are the mean of its conditionals, and the mode is the best result of hill climbing from several
samples.
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
"""Maximum number of fillings of a row that are enumerated."""
GIBBS_SWEEPS = 60
"""Gibbs sweeps over all positions; marginals skip the first third as burn-in."""
SEARCH_RESTARTS = 16
"""Samples from which the search for the mode climbs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PottsJoint:
    """Joint distribution of n tokens for each of B rows: a `PaddedJointDistribution`."""

    scores: Tensor
    """(B, n, V) φ; -inf at impossible tokens."""
    ties: Tensor
    """(B, n, n, R, R) M_ij; only those with i < j are used."""
    vectors: Tensor
    """(V, R) f."""
    lengths: Tensor
    """(B,) number of positions of each row."""

    @property
    def real(self) -> Tensor:
        """(B, n) bool: the unpadded positions."""
        positions = torch.arange(self.scores.shape[1], device=self.scores.device)
        return positions < self.lengths[:, None]

    @cached_property
    def symmetric_ties(self) -> Tensor:
        """(B, n, n, R, R) M_ij above the diagonal and M_jiᵀ below it; 0 if there is no pair."""
        count = self.scores.shape[1]
        above = torch.ones(count, count, dtype=torch.bool, device=self.scores.device).triu(1)
        pairs = self.real[:, :, None] & self.real[:, None, :] & above
        upper = torch.where(pairs[..., None, None], self.ties, 0.0)
        return upper + upper.transpose(1, 2).mT

    def conditionals(self, tokens: Tensor) -> Tensor:
        """(B, n, V) log p(x_i | all the others of `tokens` (B, n))."""
        fields = torch.einsum("bijrs,bjs->bir", self.symmetric_ties, self.vectors[tokens])
        return F.log_softmax(self.scores + fields @ self.vectors.T, -1)

    def pseudo_log_prob(self, tokens: Tensor) -> Tensor:
        """(B,) pseudo-log-likelihood Σ_i log p(x_i | the others) (Besag 1975)."""
        log_probs = self.conditionals(tokens).gather(-1, tokens[..., None])[..., 0]
        return torch.where(self.real, log_probs, 0.0).sum(1)

    def log_prob(self, tokens: Tensor) -> Tensor:
        """(B,) exact log-probability by enumeration, if fillings are few."""
        return torch.stack(
            [
                self._table(row)[tuple(tokens[row, :length].tolist())]
                for row, length in enumerate(self.lengths.tolist())
            ]
        )

    def prefix_log_probs(self, tokens: Tensor) -> Tensor:
        """(B, n) likewise, with the tokens after each position summed out."""
        zeros = torch.zeros(tokens.shape, dtype=self.scores.dtype, device=tokens.device)
        rows = []
        for row, length in enumerate(self.lengths.tolist()):
            table, terms = self._table(row), list(zeros[row].unbind())
            for position in range(length):
                completions = table[tuple(tokens[row, : position + 1].tolist())]
                terms[position] = torch.logsumexp(completions.flatten(), 0)
            rows.append(torch.stack(terms))
        return torch.stack(rows)

    def sample(self, *, generator: torch.Generator | None = None) -> Tensor:
        """(B, n) tokens: exact if fillings are few, else after some Gibbs sweeps."""
        if not self._all_enumerable:
            return self._gibbs(generator)[0]
        sampled = torch.zeros(self.scores.shape[:2], dtype=torch.int64, device=self.scores.device)
        for row, length in enumerate(self.lengths.tolist()):
            if length:
                table = self._table(row)
                flat_index = Categorical(table.flatten()).sample(generator=generator)
                index = torch.unravel_index(flat_index, table.shape)
                sampled[row, :length] = torch.stack(list(index))
        return sampled

    def marginals(self, *, generator: torch.Generator | None = None) -> Tensor:
        """(B, n, V): exact if fillings are few, else the mean of Gibbs conditionals.

        Deterministic without a generator: the sweeps have their own seed.
        """
        with torch.no_grad():
            if not self._all_enumerable:
                return self._gibbs(generator or torch.Generator().manual_seed(0))[1]
            log_probs = F.log_softmax(self.scores, -1)
            for row, length in enumerate(self.lengths.tolist()):
                table = self._table(row)
                for position in range(length):
                    others = [other for other in range(length) if other != position]
                    log_probs[row, position] = torch.logsumexp(table, others) if others else table
            return log_probs

    def ranked(self, row: int, count: int) -> list[RankedFilling]:
        """Best first; if fillings are many, the best found by hill climbing, not proven.

        Their log_prob is then the pseudo-log-likelihood, as the partition function is unknown.
        """
        length = int(self.lengths[row])
        if length == 0:
            return [RankedFilling(tokens=(), log_prob=0.0)]
        if not self._enumerable(length):
            return self._hill_climb(row, length, count)
        with torch.no_grad():
            table = self._table(row)
            best = table.flatten().topk(min(count, table.numel()))
            fillings = torch.stack(list(torch.unravel_index(best.indices, table.shape)), -1)
        return [
            RankedFilling(tokens=tuple(tokens), log_prob=value)
            for tokens, value in zip(fillings.tolist(), best.values.tolist(), strict=True)
            if value > -math.inf
        ]

    def _enumerable(self, length: int) -> bool:
        return bool(self.scores.shape[-1] ** length <= MAX_ENUMERATED_FILLINGS)

    @property
    def _all_enumerable(self) -> bool:
        return self._enumerable(int(self.lengths.max()))

    def _table(self, row: int) -> Tensor:
        """(V, …, V) log-probabilities of all fillings of a row; () for an empty row."""
        length, size = int(self.lengths[row]), self.scores.shape[-1]
        if not self._enumerable(length):
            raise UserError(
                f"{size} tokens fill {length} masks in {size}^{length} combinations, which this "
                "system would have to enumerate; use fewer masks (at most "
                f"{MAX_ENUMERATED_FILLINGS} combinations), or use --set dependencies=chain or "
                "dependencies=tree."
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
        """Tokens after all sweeps, and the log of the mean conditionals (B, n, V)."""
        with torch.no_grad():
            tokens = Categorical(F.log_softmax(self.scores, -1)).sample(generator=generator)
            total = torch.zeros_like(self.scores)
            for sweep in range(GIBBS_SWEEPS):
                for position in range(tokens.shape[1]):
                    conditional = self.conditionals(tokens)[:, position]
                    tokens[:, position] = Categorical(conditional).sample(generator=generator)
                    if sweep >= GIBBS_SWEEPS // 3:
                        total[:, position] += conditional.exp()
        return tokens, (total / total.sum(-1, keepdim=True)).log()

    def _hill_climb(self, row: int, length: int, count: int) -> list[RankedFilling]:
        """Coordinate ascent: each position to its best given the others, from several starts.

        Distinct local optima, best first by their unnormalised log-probability.
        """
        chains = PottsJoint(
            scores=self.scores[row, :length].detach().expand(SEARCH_RESTARTS, -1, -1),
            ties=self.ties[row, :length, :length].detach().expand(SEARCH_RESTARTS, -1, -1, -1, -1),
            vectors=self.vectors.detach(),
            lengths=self.lengths.new_full((SEARCH_RESTARTS,), length),
        )
        tokens = chains.sample(generator=torch.Generator().manual_seed(0))
        changed = True
        while changed:
            before = tokens.clone()
            for position in range(length):
                tokens[:, position] = chains.conditionals(tokens)[:, position].argmax(-1)
            changed = not torch.equal(before, tokens)
        fields = torch.einsum("bijrs,bjs->bir", chains.symmetric_ties, chains.vectors[tokens])
        unary = chains.scores.gather(-1, tokens[..., None])[..., 0].sum(1)
        energies = unary + (chains.vectors[tokens] * fields).sum((1, 2)) / 2
        values = chains.pseudo_log_prob(tokens).tolist()
        order = energies.argsort(descending=True, stable=True).tolist()
        optima = {tuple(tokens[index].tolist()): values[index] for index in order}
        return [
            RankedFilling(tokens=filling, log_prob=value, kind="pseudo", proven=False)
            for filling, value in list(optima.items())[:count]
        ]
