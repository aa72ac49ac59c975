"""Word2vec p(w | context) from CBOW (mean, sum, product of sigmoids) or skip-gram scores.

Negative sampling fits score(w, c) to log p(w | c) - log k q(w), with k samples from the noise q: it
is noise-contrastive estimation with the normaliser fixed at 1 (Mnih and Kavukcuoglu 2013, Levy and
Goldberg 2014). So a fitted model's distribution is

    p(w | c) = q(w) exp(score(w, c)) / Σ_v q(v) exp(score(v, c)).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.parts import Emission
from lmlab.core.vocabulary import NO_TOKEN
from lmlab.layers.unigram_distribution import UnigramDistribution

MAX_SCORES_AT_ONCE = 1 << 22
"""Maximum number of scores computed at once over the whole vocabulary."""


class CombinedScores(NamedTuple):
    """Scores of C candidates under J context representations of each of N contexts."""

    scores: Tensor
    """(N, J, C)"""
    present: Tensor
    """(N, J) bool: false at padding."""


class ContextCombination(nn.Module, ABC):
    """Combination of context words into scores of a candidate (CBOW, skip-gram).

    `forward` takes context vectors (N, M, W), their padding mask (N, M), and candidate vectors: (V,
    W) shared, or (N, C, W) per context.
    """

    code: str
    """Its name in compiled code."""

    @abstractmethod
    def forward(self, context: Tensor, present: Tensor, candidates: Tensor) -> CombinedScores: ...


class PooledContext(ContextCombination):
    """CBOW: score(w, c) = o_w · mean_j x_j, or the sum. With an empty context, 0.

    With `undivided_gradient`, the gradient of the mean reaches each x_j undivided, as in word2vec
    and gensim: context vectors learn faster by the number of context words (İrsoy et al. 2021).
    """

    def __init__(self, *, mean: bool, undivided_gradient: bool = False) -> None:
        super().__init__()
        self.mean = mean
        self.whole = mean and undivided_gradient
        self.code = "mean" if mean else "sum"

    def forward(self, context: Tensor, present: Tensor, candidates: Tensor) -> CombinedScores:
        total = (context * present[..., None]).sum(1, keepdim=True)
        pooled = total
        if self.mean:
            pooled = total / present.sum(1).clamp(min=1)[:, None, None]
        if self.whole:
            # The value of the mean, the gradient of the sum.
            pooled = pooled.detach() + (total - total.detach())
        return CombinedScores(pooled @ candidates.mT, present.any(1, keepdim=True))


class SigmoidProduct(ContextCombination):
    """CBOW by a product of sigmoids: P(w belongs to c) = Π_j σ(o_w · x_j), score = logit P."""

    code = "product"

    def forward(self, context: Tensor, present: Tensor, candidates: Tensor) -> CombinedScores:
        log_sigmoids = F.logsigmoid(context @ candidates.mT) * present[..., None]
        total = log_sigmoids.sum(1, keepdim=True)
        total = total.clamp(max=-1e-6)  # a product of 1 would have an infinite score
        return CombinedScores(total - torch.log(-torch.expm1(total)), present.any(1, keepdim=True))


class EachContextWord(ContextCombination):
    """Skip-gram: score(w, x_j) = o_w · x_j for each context word separately."""

    code = "each"

    def forward(self, context: Tensor, present: Tensor, candidates: Tensor) -> CombinedScores:
        return CombinedScores(context @ candidates.mT, present)


class Word2VecEmission(Emission):
    """Word distribution p(w | c) ∝ q(w) exp(score(w, c)), averaged over representations of c.

    One representation for CBOW; for skip-gram one per context word, so that p(w | c) is the mean
    over j of p(w | x_j). With an empty context it is the prior. <unk> is not trained: its score is
    -log k, at which it is as probable as under the noise distribution. Contexts (…, M) ids,
    log-probabilities (…, V); -inf at special tokens, the end included. Initialised as word2vec:
    context vectors uniform in ±1/2W, the others zero.
    """

    input_kinds: ClassVar[frozenset[str]] = frozenset({"contexts"})

    def __init__(
        self,
        width: int,
        unigram: UnigramDistribution,
        combination: ContextCombination,
        *,
        negatives: int,
    ) -> None:
        super().__init__()
        self.negatives = negatives
        self.unigram = unigram
        self.combination = combination
        size = unigram.vocabulary.size
        self.inputs = nn.Parameter((torch.rand(size, width) - 0.5) / width)
        self.outputs = nn.Parameter(torch.zeros(size, width))

    def combined_scores(self, contexts: Tensor, candidates: Tensor | None = None) -> CombinedScores:
        """Scores of the candidates (N, C), all tokens unless given, by contexts (N, M)."""
        present = contexts != NO_TOKEN
        context = F.embedding(contexts.clamp(min=0), self.inputs)
        vectors = self.outputs if candidates is None else F.embedding(candidates, self.outputs)
        return self.combination(context, present, vectors)

    def log_probs(self, hidden: Tensor) -> Tensor:
        contexts = hidden.reshape(-1, hidden.shape[-1])
        rows = max(1, MAX_SCORES_AT_ONCE // (len(self.outputs) * max(1, contexts.shape[1])))
        chunks = [self._log_probs(part) for part in contexts.split(rows)]
        log_probs = torch.cat(chunks) if chunks else self.outputs.new_zeros(0, len(self.outputs))
        return log_probs.view(*hidden.shape[:-1], len(self.outputs))

    def _log_probs(self, contexts: Tensor) -> Tensor:
        prior = self.unigram.log_prior().to(self.outputs)
        scores, present = self.combined_scores(contexts)
        if self.unigram.vocabulary.unknown is not None:
            scores[..., self.unigram.vocabulary.unknown] = -math.log(max(self.negatives, 1))
        # With an empty context, one representation of score 0 leaves the prior.
        empty = ~present.any(1, keepdim=True)
        scores = scores.masked_fill(empty[..., None], 0.0)
        present = present | (empty & (torch.arange(present.shape[1], device=present.device) == 0))
        log_probs = F.log_softmax(scores + prior, dim=-1)
        log_probs = log_probs.masked_fill(~present[..., None], -torch.inf)
        return torch.logsumexp(log_probs, dim=1) - present.sum(1).log()[:, None]
