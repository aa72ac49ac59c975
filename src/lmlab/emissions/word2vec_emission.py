"""Word2vec p(w | context) from CBOW (mean, sum, product of sigmoids) or skip-gram scores.

Negative sampling fits score(w, c) to log p(w | c) - log k q(w), with k samples from the noise q: it
is noise-contrastive estimation with the normaliser fixed at 1 (Mnih and Kavukcuoglu 2013, Levy and
Goldberg 2014). So a fitted model's distribution is

    p(w | c) = q(w) exp(score(w, c)) / Σ_v q(v) exp(score(v, c)).

A model trained by the full softmax has no noise: p(w | c) = softmax_w(score(w, c)).
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
from lmlab.layers.softmax_log_prob import linear_log_prob
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

    def pool(self, context: Tensor, present: Tensor) -> Tensor | None:
        """(N, W) one vector per context; None where each of its words predicts by itself."""
        return None


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
        pooled = self.pool(context, present)[:, None]
        return CombinedScores(pooled @ candidates.mT, present.any(1, keepdim=True))

    def pool(self, context: Tensor, present: Tensor) -> Tensor:
        total = (context * present[..., None]).sum(1)
        pooled = total
        if self.mean:
            pooled = total / present.sum(1).clamp(min=1)[:, None]
        if self.whole:
            # The value of the mean, the gradient of the sum.
            pooled = pooled.detach() + (total - total.detach())
        return pooled


class SigmoidProduct(ContextCombination):
    """CBOW by a product of sigmoids: P(w belongs to c) = Π_j σ(o_w · x_j), score = logit P."""

    code = "product"

    def forward(self, context: Tensor, present: Tensor, candidates: Tensor) -> CombinedScores:
        log_sigmoids = F.logsigmoid(context @ candidates.mT) * present[..., None]
        total = log_sigmoids.sum(1, keepdim=True)
        total = total.clamp(max=-1e-6)  # a product of 1 would have an infinite score
        return CombinedScores(total - torch.log(-torch.expm1(total)), present.any(1, keepdim=True))


class SoftmaxProduct(ContextCombination):
    """CBOW by a product of softmaxes: p(w | c) ∝ Π_j p(w | x_j) = Π_j softmax_w(o_w · x_j).

    Each context word predicts by itself in training. The normalised product is the softmax of the
    summed scores, since the denominators are the same for all w.
    """

    code = "softmax-product"

    def forward(self, context: Tensor, present: Tensor, candidates: Tensor) -> CombinedScores:
        scores = (context @ candidates.mT * present[..., None]).sum(1, keepdim=True)
        return CombinedScores(scores, present.any(1, keepdim=True))


class EachContextWord(ContextCombination):
    """Skip-gram: score(w, x_j) = o_w · x_j for each context word separately."""

    code = "each"

    def forward(self, context: Tensor, present: Tensor, candidates: Tensor) -> CombinedScores:
        return CombinedScores(context @ candidates.mT, present)


class Word2VecEmission(Emission):
    """Word distribution p(w | c) ∝ q(w) exp(score(w, c)), averaged over representations of c.

    One representation for CBOW; for skip-gram one per context word, so that p(w | c) is the mean
    over j of p(w | x_j). With an empty context it is the prior. <unk> is not trained: its score is
    -log k, at which it is as probable as under the noise distribution. Trained by the full softmax
    (`negatives` None), p(w | c) has no prior, and <unk> the share that it has of the training text.
    Contexts (…, M) ids, log-probabilities (…, V); -inf at special tokens, the end included.
    Initialised as word2vec: context vectors uniform in ±1/2W, the others zero.

    With `max_norm` > 0 a vector longer than that counts as one of this length and its direction;
    compiled training projects vectors onto this length after each step.
    """

    input_kinds: ClassVar[frozenset[str]] = frozenset({"contexts"})

    def __init__(
        self,
        width: int,
        unigram: UnigramDistribution,
        combination: ContextCombination,
        *,
        negatives: int | None,
        max_norm: float = 0.0,
    ) -> None:
        super().__init__()
        self.negatives = negatives
        self.max_norm = max_norm
        self.unigram = unigram
        self.combination = combination
        size = unigram.vocabulary.size
        self.inputs = nn.Parameter((torch.rand(size, width) - 0.5) / width)
        self.outputs = nn.Parameter(torch.zeros(size, width))

    def combined_scores(self, contexts: Tensor, candidates: Tensor | None = None) -> CombinedScores:
        """Scores of the candidates (N, C), all tokens unless given, by contexts (N, M)."""
        present = contexts != NO_TOKEN
        context = self.input_vectors(contexts.clamp(min=0))
        return self.combination(context, present, self.output_vectors(candidates))

    def input_vectors(self, ids: Tensor | None = None) -> Tensor:
        """Context vectors of the ids (…), or (V, W) all; none is longer than `max_norm`."""
        return self._limited(self.inputs if ids is None else F.embedding(ids, self.inputs))

    def output_vectors(self, ids: Tensor | None = None) -> Tensor:
        """The same of the vectors of predicted words."""
        return self._limited(self.outputs if ids is None else F.embedding(ids, self.outputs))

    def _limited(self, vectors: Tensor) -> Tensor:
        if not self.max_norm:
            return vectors
        lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        return vectors * (self.max_norm / lengths.clamp(min=self.max_norm))

    def softmax_log_probs(self, contexts: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(N, J) log p(target | representation of the context) by the full softmax, their mask."""
        outputs, present = self.output_vectors(), contexts != NO_TOKEN
        ids, position = contexts.clamp(min=0).unique(return_inverse=True)
        different = self.input_vectors(ids)
        pooled = self.combination.pool(F.embedding(position, different), present)
        bias = self._log_is_word()
        if pooled is not None:
            log_probs = linear_log_prob(pooled, outputs, bias, targets)[:, None]
            return log_probs, present.any(1, keepdim=True)
        # Each context word predicts by itself: one softmax for each different one.
        table = F.log_softmax(different @ outputs.mT + bias, dim=-1)
        return table[position, targets[:, None]], present

    def _log_is_word(self) -> Tensor:
        """(V,) 0 at words, -inf at what the softmax leaves out."""
        return self.unigram.is_word.to(self.outputs).log()

    def log_probs(self, hidden: Tensor) -> Tensor:
        contexts = hidden.reshape(-1, hidden.shape[-1])
        rows = max(1, MAX_SCORES_AT_ONCE // (len(self.outputs) * max(1, contexts.shape[1])))
        chunks = [self._log_probs(part) for part in contexts.split(rows)]
        log_probs = torch.cat(chunks) if chunks else self.outputs.new_zeros(0, len(self.outputs))
        return log_probs.view(*hidden.shape[:-1], len(self.outputs))

    def _log_probs(self, contexts: Tensor) -> Tensor:
        if self.negatives is None:
            return self._softmax_log_probs(contexts)
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

    def _softmax_log_probs(self, contexts: Tensor) -> Tensor:
        scores, present = self.combined_scores(contexts)
        log_probs = F.log_softmax(scores + self._log_is_word(), dim=-1)
        log_probs = log_probs.masked_fill(~present[..., None], -torch.inf)
        log_probs = torch.logsumexp(log_probs, dim=1) - present.sum(1).log()[:, None]
        unknown, share = self.unigram.vocabulary.unknown, self.unigram.unknown_share()
        if unknown is not None:
            log_probs = log_probs + (1 - share).log().to(log_probs)
            log_probs[:, unknown] = share.log().to(log_probs)
        prior = self.unigram.log_prior().to(log_probs)
        return torch.where(present.any(1, keepdim=True), log_probs, prior)
