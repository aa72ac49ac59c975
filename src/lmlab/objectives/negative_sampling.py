"""Negative sampling: tell the word that stands in a place from words drawn at random.

Mikolov et al. 2013 (word2vec). For each word w of a text with its surroundings c, and k words v_i
drawn from the noise law q:

    loss = -log σ(score(w, c)) - Σ_i log σ(-score(v_i, c))
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from lmlab.core.attention_mask import ExplicitMask
from lmlab.core.batch import Batch
from lmlab.core.loss import Loss
from lmlab.core.parts import Network
from lmlab.core.protocols import LogProbs
from lmlab.core.score_kind import ScoreKind
from lmlab.core.state import State
from lmlab.core.system import Assembly
from lmlab.core.view import NO_TARGET, View
from lmlab.emissions.word2vec_emission import Word2VecEmission
from lmlab.layers.unigram_distribution import UnigramDistribution
from lmlab.objectives.objective_interfaces import MaskedLMObjective


class NegativeSampling(MaskedLMObjective):
    """Words against noise, given the words at most `window` away in the same sentence.

    In training frequent words are left out first (see `UnigramDistribution`), so that a window
    reaches further; each window is shrunk to 1 … `window` at random, which weighs near words more;
    or, where `random_contexts` is given, that many words of the whole window are drawn, as 002 has
    it. The noise is shared by all readings of a place. Where noise hits the right word it stays: it
    is what makes the optimum a probability and not odds (word2vec skips it, alike for many words).

    `log_prob` is a pseudo-log-likelihood: Σ_t log p(s_t | the whole window around t), with p as of
    `Word2VecEmission`, over all tokens but the end symbol. Cost: one pass.
    """

    kind: ClassVar[ScoreKind] = "pseudo"

    def __init__(
        self, law: UnigramDistribution, *, window: int, negatives: int, random_contexts: int = 0
    ) -> None:
        super().__init__()
        self.unigram = law
        self.window = window
        self.negatives = negatives
        self.random_contexts = random_contexts

    def setup_data(
        self, network: Network, tokens: NDArray[np.generic], offsets: NDArray[np.int64]
    ) -> None:
        self.unigram.count(tokens)

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        """What is left of the text, each word seeing those of its own window; none sees itself."""
        kept = self.unigram.keep_probabilities().to(batch.tokens.device)[batch.tokens]
        words = (_rand(kept, generator) < kept) & batch.mask()
        reach: Tensor | int = self.window
        if not self.random_contexts:
            shrunk = _rand(kept, generator) * self.window
            reach = 1 + shrunk.long().clamp(max=self.window - 1)[..., None]
        seen = self._near(batch, words, words, reach) & words[..., None]
        if self.random_contexts:
            seen = _some(seen, self.random_contexts, generator)
        return _asking(batch, seen, words & seen.any(-1))

    def fill_view(self, batch: Batch, masked: Tensor) -> View:
        """Each place sees the words of the whole window around it that are not masked."""
        words = self.unigram.is_word[batch.tokens] & batch.mask() & ~masked
        return _asking(batch, self._near(batch, words, words | masked, self.window), masked)

    def _near(self, batch: Batch, words: Tensor, counted: Tensor, reach: Tensor | int) -> Tensor:
        """(B, T, T) who sees whom of `words`: distance is in `counted` places, in one sentence."""
        rank = counted.cumsum(1)
        # A place that is not counted stands between two that are.
        rank = torch.where(counted, 2 * rank, 2 * rank + 1)
        sentence = self.unigram.is_boundary[batch.tokens].cumsum(1)
        apart = (rank[:, :, None] - rank[:, None, :]).abs()
        near = (apart <= 2 * reach) & (sentence[:, :, None] == sentence[:, None, :])
        itself = torch.eye(rank.shape[1], dtype=torch.bool, device=rank.device)
        return near & words[:, None, :] & ~itself

    def loss(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        """For each reading of a place: one for CBOW, one for each word around for skip-gram."""
        view = self.view(batch, generator=generator)
        assert view.targets is not None
        places = view.targets != NO_TARGET
        contexts, targets = network.hidden(view).values[places], view.targets[places]
        noise = self.unigram.sample_noise((len(targets), self.negatives), generator=generator)
        lost, present = negative_sampling_loss(_emission(network), contexts, targets, noise)
        return Loss((lost * present).sum(), present.sum().to(lost)), None

    def log_prob(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        asked = batch.targets_mask()
        if self.unigram.vocabulary.end is not None:
            asked = asked & (batch.tokens != self.unigram.vocabulary.end)
        # No place sees itself, so that nothing needs hiding.
        words = self.unigram.is_word[batch.tokens] & batch.mask()
        view = _asking(batch, self._near(batch, words, words, self.window), asked)
        found = network.target_log_probs(view).to_dense()
        return LogProbs(per_token=found[:, 1:], kind=self.kind)


def negative_sampling_loss(
    emission: Word2VecEmission, contexts: Tensor, targets: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """(N, J) losses and which of them count, of targets (N,) against noise (N, k)."""
    scores, present = emission.combined_scores(contexts, torch.cat([targets[:, None], noise], 1))
    return F.softplus(-scores[..., 0]) + F.softplus(scores[..., 1:]).sum(-1), present


def _emission(network: Network) -> Word2VecEmission:
    assert isinstance(network, Assembly) and isinstance(network.emission, Word2VecEmission)
    return network.emission


def _asking(batch: Batch, seen: Tensor, asked: Tensor) -> View:
    """The clean text, from which each place of `asked` (B, T) is predicted by what it has seen.

    What predicts a place is not what is fed there: so it is a second stream's visibility too.
    """
    place = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    return View(
        inputs=batch.tokens,
        lengths=batch.lengths,
        attention_mask=ExplicitMask(seen),
        query_attention_mask=ExplicitMask(seen),
        targets=batch.tokens.masked_fill(~asked, NO_TARGET),
        clean_positions=place.expand_as(batch.tokens).masked_fill(~asked, -1),
    )


def _some(seen: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """At most `count` of the true entries of each row, drawn at random."""
    keys = _rand(seen, generator).masked_fill(~seen, -1.0)
    best = keys.topk(min(count, seen.shape[-1]), dim=-1).indices
    return torch.zeros_like(seen).scatter(-1, best, True) & seen


def _rand(like: Tensor, generator: torch.Generator | None) -> Tensor:
    shape = like.shape
    return torch.rand(shape, generator=generator, device=like.device, dtype=torch.float64)
