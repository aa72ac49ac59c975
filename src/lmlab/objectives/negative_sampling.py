"""Word2vec's losses: negative sampling, centre word against noise words; and the full softmax."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lmlab.emissions.word2vec_emission import Word2VecEmission
from lmlab.layers.unigram_distribution import UnigramDistribution
from lmlab.objectives.context_windows import ContextWindows


class NegativeSampling(ContextWindows):
    """Negative sampling (Mikolov et al. 2013): a word against k noise words v_i ~ q.

        loss = -log σ(score(w, c)) - Σ_i log σ(-score(v_i, c))

    All contexts of a position share its noise. Noise that equals the target is kept: it makes the
    optimum a probability and not odds (word2vec skips it; in large vocabularies it hardly matters).
    """

    def __init__(
        self, unigram: UnigramDistribution, *, window: int, negatives: int, random_contexts: int = 0
    ) -> None:
        super().__init__(unigram, window=window, random_contexts=random_contexts)
        self.negatives = negatives

    def losses(
        self,
        emission: Word2VecEmission,
        contexts: Tensor,
        targets: Tensor,
        *,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, Tensor]:
        noise = self.unigram.sample_noise((len(targets), self.negatives), generator=generator)
        return negative_sampling_loss(emission, contexts, targets, noise)


def negative_sampling_loss(
    emission: Word2VecEmission, contexts: Tensor, targets: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """(N, J) losses and their mask, of targets (N,) against noise (N, k)."""
    scores, present = emission.combined_scores(contexts, torch.cat([targets[:, None], noise], 1))
    return F.softplus(-scores[..., 0]) + F.softplus(scores[..., 1:]).sum(-1), present


class FullSoftmax(ContextWindows):
    """Word2vec by the full softmax over all words, the definition that sampling avoids.

        loss = -log p(w | c),   p(w | c) = exp(score(w, c)) / Σ_v exp(score(v, c))

    Mikolov et al. 2013, equation 2: for each context word of skip-gram, for the pooled context of
    CBOW. Cost: a row of V scores for each different context.
    """

    def losses(
        self,
        emission: Word2VecEmission,
        contexts: Tensor,
        targets: Tensor,
        *,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, Tensor]:
        log_probs, present = emission.softmax_log_probs(contexts, targets)
        return -log_probs, present
