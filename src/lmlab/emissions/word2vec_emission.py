"""Scores of words by two vectors a word, one as context and one as the word asked for.

Negative sampling fits score(w, c) to log p(w | c) - log k q(w), with k draws from the noise q: it
is noise-contrastive estimation whose normaliser is held at 1 (Mnih and Kavukcuoglu 2013, Levy and
Goldberg 2014). So what a fitted model says of a word is

    p(w | c) = q(w) exp(score(w, c)) / Σ_v q(v) exp(score(v, c)).
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.parts import Emission
from lmlab.core.vocabulary import NO_TOKEN
from lmlab.layers.unigram_distribution import UnigramDistribution

MAX_SCORES_AT_ONCE = 1 << 22
"""Scores that are computed at once where the whole vocabulary is asked for."""


class CombinedScores(NamedTuple):
    """Scores of C candidates by J readings of each of N surroundings."""

    scores: Tensor
    """(N, J, C)"""
    present: Tensor
    """(N, J) bool: where there is such a reading."""


class ContextCombination(nn.Module):
    """How the words around a place score a candidate together.

    `forward` is given vectors of the surroundings (N, M, W), which of them are there (N, M), and
    vectors of the candidates: (V, W) the same for all, or (N, C, W) others for each.
    """

    code: str
    """What compiled code calls it."""

    def forward(self, around: Tensor, present: Tensor, candidates: Tensor) -> CombinedScores:
        raise TypeError(f"{type(self).__name__} does not define forward")


class PooledContext(ContextCombination):
    """score(w, c) = o_w · mean_j x_j, or the sum: CBOW. With nothing around, 0.

    With `whole`, the gradient of the mean reaches each x_j undivided, as word2vec and gensim have
    it: context vectors learn by as much faster as there are words around (İrsoy et al. 2021).
    """

    def __init__(self, *, mean: bool, whole: bool = False) -> None:
        super().__init__()
        self.mean = mean
        self.whole = mean and whole
        self.code = "mean" if mean else "sum"

    def forward(self, around: Tensor, present: Tensor, candidates: Tensor) -> CombinedScores:
        total = (around * present[..., None]).sum(1, keepdim=True)
        pooled = total
        if self.mean:
            pooled = total / present.sum(1).clamp(min=1)[:, None, None]
        if self.whole:
            # The value of the mean, the gradient of the sum.
            pooled = pooled.detach() + (total - total.detach())
        return CombinedScores(pooled @ candidates.mT, present.any(1, keepdim=True))


class SigmoidProduct(ContextCombination):
    """P(w belongs to c) = Π_j σ(o_w · x_j), score = log P/(1 - P): CBOW as 002 writes it."""

    code = "product"

    def forward(self, around: Tensor, present: Tensor, candidates: Tensor) -> CombinedScores:
        each = F.logsigmoid(around @ candidates.mT) * present[..., None]
        total = each.sum(1, keepdim=True)
        total = total.clamp(max=-1e-6)  # a product of 1 would have an infinite score
        return CombinedScores(total - torch.log(-torch.expm1(total)), present.any(1, keepdim=True))


class EachContextWord(ContextCombination):
    """score(w, x_j) = o_w · x_j for each word around alone: skip-gram."""

    code = "each"

    def forward(self, around: Tensor, present: Tensor, candidates: Tensor) -> CombinedScores:
        return CombinedScores(around @ candidates.mT, present)


class Word2VecEmission(Emission):
    """p(w | c) ∝ q(w) exp(score(w, c)), mixed in equal parts over the readings of c.

    One reading for CBOW; for skip-gram one for each word around, so that p(w | c) is the mean over
    j of p(w | x_j). With nothing around it is the prior. The unknown word is not trained: its score
    is -log k, at which it is as likely as the noise law has it. Contexts (…, M) ids,
    log-probabilities (…, V); -inf at symbols, the end among them. Vectors start as word2vec's do:
    those of contexts uniform in ±1/2W, the others at zero.
    """

    input_kinds: ClassVar[frozenset[str]] = frozenset({"contexts"})

    def __init__(
        self,
        width: int,
        law: UnigramDistribution,
        combination: ContextCombination,
        *,
        negatives: int,
    ) -> None:
        super().__init__()
        self.negatives = negatives
        self.unigram = law
        self.combination = combination
        size = law.vocabulary.size
        self.inputs = nn.Parameter((torch.rand(size, width) - 0.5) / width)
        self.outputs = nn.Parameter(torch.zeros(size, width))

    def combined_scores(self, contexts: Tensor, candidates: Tensor | None = None) -> CombinedScores:
        """Scores of the candidates (N, C), all tokens unless given, by contexts (N, M)."""
        present = contexts != NO_TOKEN
        around = F.embedding(contexts.clamp(min=0), self.inputs)
        vectors = self.outputs if candidates is None else F.embedding(candidates, self.outputs)
        joined: CombinedScores = self.combination(around, present, vectors)
        return joined

    def log_probs(self, hidden: Tensor) -> Tensor:
        contexts = hidden.reshape(-1, hidden.shape[-1])
        rows = max(1, MAX_SCORES_AT_ONCE // (len(self.outputs) * max(1, contexts.shape[1])))
        found = [self._log_probs(part) for part in contexts.split(rows)]
        log_probs = torch.cat(found) if found else self.outputs.new_zeros(0, len(self.outputs))
        return log_probs.view(*hidden.shape[:-1], len(self.outputs))

    def _log_probs(self, contexts: Tensor) -> Tensor:
        prior = self.unigram.log_prior().to(self.outputs)
        scores, present = self.combined_scores(contexts)
        if self.unigram.vocabulary.unknown is not None:
            scores[..., self.unigram.vocabulary.unknown] = -math.log(max(self.negatives, 1))
        # With nothing around, one reading of score 0 leaves the prior.
        empty = ~present.any(1, keepdim=True)
        scores = scores.masked_fill(empty[..., None], 0.0)
        present = present | (empty & (torch.arange(present.shape[1], device=present.device) == 0))
        each = F.log_softmax(scores + prior, dim=-1)
        each = each.masked_fill(~present[..., None], -torch.inf)
        return torch.logsumexp(each, dim=1) - present.sum(1).log()[:, None]
