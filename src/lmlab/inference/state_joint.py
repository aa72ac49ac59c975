"""Joint of n tokens coupled by a chain or tree of latent states: likelihood, samples, posteriors.

    p(x) ∝ Σ_z Π_i exp(φ_i(x_i) + g(z_i, x_i) + r_i(z_i)) Π_{i>0} exp(A_i(z_parent(i), z_i))

This replaces a V × V matrix of pair potentials by one of rank K: exact normalisation costs n (K² +
K V) instead of n V². Likelihood, samples and posteriors are one dynamic program over different
semirings (`linear_chain.py`, `tree_total`; the likelihood by the faster `state_sums`); the most
probable tokens are found by `best_first.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from lmlab.core.distribution import Categorical
from lmlab.core.joint_distribution import RankedFilling
from lmlab.inference import linear_chain
from lmlab.inference.best_first import BestFirstSearch
from lmlab.inference.semirings import LOG, SampleSemiring, Semiring, structure_marginals


def state_sums(
    unary: Tensor, links: Tensor, lengths: Tensor, parents: Tensor | None = None
) -> Tensor:
    """(C, B) log Σ_z exp(score(z)) for C sets of potentials (C, B, N, K) over links (B, N-1, K, K).

    `parents` (B, N) as in `StateJoint`, None for a chain; `lengths` (B,) at least 1. Terms below
    the smallest float times the largest of their sum count as that.
    """
    messages = list(unary.transpose(0, 1).unbind(2))
    max_links = links.amax((-1, -2), keepdim=True).detach()
    # (B, K', K): the product takes a child's states (B, C, K') to its parent's.
    products = (links - max_links).exp().mT.unbind(1)
    for child in range(len(messages) - 1, 0, -1):
        top = messages[child].amax(-1, keepdim=True).detach()
        sums = (messages[child] - top).exp() @ products[child - 1]
        tiny = torch.finfo(sums.dtype).tiny
        message = sums.clamp(min=tiny).log() + top + max_links[:, child - 1]
        message = torch.where((child < lengths)[:, None, None], message, 0.0)
        if parents is None:
            messages[child - 1] = messages[child - 1] + message
            continue
        for parent in range(child):
            receives = (parents[:, child] == parent)[:, None, None]
            messages[parent] = messages[parent] + torch.where(receives, message, 0.0)
    return torch.logsumexp(messages[0], -1).T


@dataclass(frozen=True, kw_only=True, eq=False)
class StateJoint:
    """Joint distribution of n tokens for each of B rows: a `PaddedJointDistribution`."""

    scores: Tensor
    """(B, n, V) φ, unary token potentials; -inf at impossible tokens."""
    affinities: Tensor
    """(K, V) g, emission potentials, the same at every position."""
    states: Tensor
    """(B, n, K) r, unary state potentials."""
    links: Tensor
    """(B, n - 1, K, K) A: entry i - 1 connects position i, in the last axis, to its parent."""
    lengths: Tensor
    """(B,) number of positions of each row; padding is ignored."""
    parents: Tensor | None = None
    """(B, n) indices of earlier positions; None for a chain."""

    @cached_property
    def free_potentials(self) -> Tensor:
        """(B, n, K) potentials of states, summed over all tokens."""
        return self.states + log_product(self.scores, self.affinities.T)

    @property
    def real(self) -> Tensor:
        """(B, n) bool: the unpadded positions."""
        positions = torch.arange(self.scores.shape[1], device=self.scores.device)
        return positions < self.lengths[:, None]

    def log_prob(self, tokens: Tensor) -> Tensor:
        """(B,) joint log-probability of tokens (B, n): two sums over the same links."""
        sums = self._sums(torch.stack([self._clamped(tokens), self.free_potentials]))
        joint, partition = sums.unbind(0)
        return (joint - partition).masked_fill(self._impossible(tokens).any(1), -torch.inf)

    def prefix_log_probs(self, tokens: Tensor) -> Tensor:
        """(B, n) log-probability of each prefix of the tokens: n + 1 batched sums."""
        count = tokens.shape[1]
        known = torch.ones(count + 1, count, dtype=torch.bool, device=tokens.device).tril(-1)
        sums = self._sums(
            torch.where(known[:, None, :, None], self._clamped(tokens), self.free_potentials)
        )
        partition, *prefixes = sums.unbind(0)
        impossible = self._impossible(tokens).cumsum(1) > 0
        return (torch.stack(prefixes, 1) - partition[:, None]).masked_fill(impossible, -torch.inf)

    def sample(self, *, generator: torch.Generator | None = None) -> Tensor:
        """(B, n) tokens: states sampled from their posterior, then a token from each."""
        semiring = SampleSemiring(generator)
        (indicators,) = structure_marginals(
            lambda unary: self._total(unary, semiring), self.free_potentials
        )
        emission = self.affinities[indicators.argmax(-1)]
        return Categorical(F.log_softmax(self.scores + emission, -1)).sample(generator=generator)

    def marginals(self, *, generator: torch.Generator | None = None) -> Tensor:
        """(B, n, V) marginal log-probabilities of each position, detached."""
        with torch.no_grad():
            by_state = self.state_posterior().log() - self.free_potentials + self.states
            return F.log_softmax(self.scores + log_product(by_state, self.affinities), -1)

    def state_posterior(self) -> Tensor:
        """(B, n, K) marginals of the states, no token known; uniform beyond a row's length."""
        (posterior,) = structure_marginals(self._total, self.free_potentials)
        # Padding is not used; any state will do there.
        return posterior.masked_fill(~self.real[..., None], 1 / posterior.shape[-1])

    def ranked(self, row: int, count: int) -> list[RankedFilling]:
        """The most probable fillings of one row, best first."""
        length = int(self.lengths[row])
        if length == 0:
            return [RankedFilling(tokens=(), log_prob=0.0)]
        with torch.no_grad():
            potentials = self.scores[row, :length, None, :] + self.states[row, :length, :, None]
            tokens = (potentials + self.affinities).double().cpu()
            links = self.links[row, : length - 1].double().cpu()
            results = BestFirstSearch(list(tokens), list(links), self._parents(row, length)).ranked(
                count
            )
            partition = float(self._row_partition(row, length))
        return [
            RankedFilling(tokens=r.tokens, log_prob=r.score - partition, proven=r.proven)
            for r in results
        ]

    def _clamped(self, tokens: Tensor) -> Tensor:
        """(B, n, K) potentials of states given their tokens, at unpadded positions."""
        score = self.scores.gather(-1, tokens[..., None])
        conditioned = self.states + score + self.affinities.T[tokens]
        known = self.real & ~self._impossible(tokens)
        return torch.where(known[..., None], conditioned, self.free_potentials)

    def _impossible(self, tokens: Tensor) -> Tensor:
        """(B, n) bool: impossible tokens, which no sum includes, as their log is -inf."""
        return self.scores.gather(-1, tokens[..., None])[..., 0].isneginf() & self.real

    def _sums(self, unary: Tensor) -> Tensor:
        """(C, B) sums over states, for potentials (C, B, n, K)."""
        return state_sums(unary, self.links, self.lengths.clamp(min=1), self.parents)

    def _total(self, unary: Tensor, semiring: Semiring = LOG) -> Tensor:
        """(B,) the semiring's sum over states, for potentials (B, n, K)."""
        lengths = self.lengths.clamp(min=1)
        if self.parents is None:
            return linear_chain.total(unary, self.links, semiring=semiring, lengths=lengths)
        return tree_total(unary, self.links, self.parents, semiring=semiring, lengths=lengths)

    def _row_partition(self, row: int, length: int) -> Tensor:
        """log Z of one row in double precision, as its search computes scores."""
        scores, states = self.scores[row, :length].double(), self.states[row, :length].double()
        unary = states + log_product(scores, self.affinities.T.double())
        links = self.links[row, : length - 1].double()
        if self.parents is None:
            return linear_chain.total(unary, links)
        return tree_total(unary, links, self.parents[row, :length])

    def _parents(self, row: int, length: int) -> list[int]:
        if self.parents is None:
            return list(range(-1, length - 1))
        parents: list[int] = self.parents[row, :length].tolist()
        return parents


def log_product(first: Tensor, second: Tensor) -> Tensor:
    """(…, C) log Σ_m exp(first[…, m] + second[m, c]), as one matrix product.

    The maxima are subtracted first; what then underflows counts as the smallest float.
    """
    rows, columns = first.amax(-1, keepdim=True), second.amax(0)
    product = (first - rows).exp() @ (second - columns).exp()
    return product.clamp(min=torch.finfo(product.dtype).tiny).log() + rows + columns


def tree_total(
    unary: Tensor,
    pairwise: Tensor,
    parents: Tensor,
    *,
    semiring: Semiring = LOG,
    lengths: Tensor | None = None,
) -> Tensor:
    """(…) the semiring's sum over all K^N assignments, from the leaves to the root."""
    count = unary.shape[-2]
    pairwise = pairwise.expand(*unary.shape[:-2], *pairwise.shape[-3:])
    parents = parents.expand(unary.shape[:-1])
    messages, pairwise = semiring.lift(unary), semiring.lift(pairwise)
    position = torch.arange(count, device=unary.device)
    for child in range(count - 1, 0, -1):
        scores = semiring.times(pairwise[..., child - 1, :, :], messages[..., child, None, :])
        message = semiring.sum(scores, -1)
        receives = position == parents[..., child, None]
        if lengths is not None:
            receives = receives & (child < lengths)[..., None]
        # The semiring's one is zero in logs and has no entropy.
        masked_message = torch.where(receives[..., None], message[..., None, :], 0.0)
        messages = semiring.times(messages, masked_message)
    return semiring.value(semiring.sum(messages[..., 0, :], -1))
