"""Context windows (word2vec): CBOW or skip-gram windows, whatever loss the centre word is given."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmlab.core.assembly import Assembly
from lmlab.core.attention_mask import ExplicitMask
from lmlab.core.batch import Batch
from lmlab.core.loss import Loss
from lmlab.core.parts import Network
from lmlab.core.protocols import LogProbs
from lmlab.core.score import ScoreKind
from lmlab.core.state import State
from lmlab.core.view import NO_TARGET, View
from lmlab.emissions.word2vec_emission import Word2VecEmission
from lmlab.layers.unigram_distribution import UnigramDistribution
from lmlab.objectives.objective_interfaces import MaskedLMObjective


class ContextWindows(MaskedLMObjective):
    """Skip-gram or CBOW: each word predicted from a context of at most `window` words.

    Mikolov et al. 2013. In training, frequent words are subsampled first (see
    `UnigramDistribution`), which widens the effective window; each window is shrunk to 1 … `window`
    at random, which weights near words more; or, with `random_contexts`, that many words of the
    full window are sampled.

    `log_prob` is a pseudo-log-likelihood: Σ_t log p(s_t | the full window around t), with p from
    `Word2VecEmission`, over all tokens but the end token. Cost: one pass.
    """

    kind: ClassVar[ScoreKind] = "pseudo"

    def __init__(
        self, unigram: UnigramDistribution, *, window: int, random_contexts: int = 0
    ) -> None:
        super().__init__()
        self.unigram = unigram
        self.window = window
        self.random_contexts = random_contexts

    @abstractmethod
    def losses(
        self,
        emission: Word2VecEmission,
        contexts: Tensor,
        targets: Tensor,
        *,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, Tensor]:
        """(N, J) losses of the targets (N,) given their contexts (N, M), and their mask."""

    def setup_data(
        self, network: Network, tokens: NDArray[np.generic], offsets: NDArray[np.int64]
    ) -> None:
        self.unigram.count(tokens)

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        """The subsampled text; each word attends to its window, none to itself."""
        keep_probs = self.unigram.keep_probabilities().to(batch.tokens.device)[batch.tokens]
        words = (_uniform(keep_probs, generator) < keep_probs) & batch.mask()
        radius: Tensor | int = self.window
        if not self.random_contexts:
            shrunk = _uniform(keep_probs, generator) * self.window
            radius = 1 + shrunk.long().clamp(max=self.window - 1)[..., None]
        mask = self._window_mask(batch, words, words, radius) & words[..., None]
        if self.random_contexts:
            mask = _sample_true(mask, self.random_contexts, generator)
        return _context_view(batch, mask, words & mask.any(-1))

    def fill_view(self, batch: Batch, masked: Tensor) -> View:
        """Each position attends to the unmasked words of the full window around it."""
        words = self.unigram.is_word[batch.tokens] & batch.mask() & ~masked
        return _context_view(
            batch, self._window_mask(batch, words, words | masked, self.window), masked
        )

    def _window_mask(
        self, batch: Batch, words: Tensor, counted: Tensor, radius: Tensor | int
    ) -> Tensor:
        """(B, T, T) attention mask over `words`; distance in `counted` positions of a sentence."""
        rank = counted.cumsum(1)
        # A position that is not counted lies between two that are.
        rank = torch.where(counted, 2 * rank, 2 * rank + 1)
        sentence = self.unigram.is_boundary[batch.tokens].cumsum(1)
        distance = (rank[:, :, None] - rank[:, None, :]).abs()
        near = (distance <= 2 * radius) & (sentence[:, :, None] == sentence[:, None, :])
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
        """Loss per prediction: one per position for CBOW, one per context word for skip-gram."""
        view = self.view(batch, generator=generator)
        assert view.targets is not None
        target_mask = view.targets != NO_TARGET
        contexts, targets = network.hidden(view).values[target_mask], view.targets[target_mask]
        emission = _emission(network)
        losses, present = self.losses(emission, contexts, targets, generator=generator)
        return Loss((losses * present).sum(), present.sum().to(losses)), None

    def log_prob(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        target_mask = batch.targets_mask()
        if self.unigram.vocabulary.end is not None:
            target_mask = target_mask & (batch.tokens != self.unigram.vocabulary.end)
        # No position attends to itself, so nothing needs masking.
        words = self.unigram.is_word[batch.tokens] & batch.mask()
        view = _context_view(
            batch, self._window_mask(batch, words, words, self.window), target_mask
        )
        log_probs = network.target_log_probs(view).to_dense()
        return LogProbs(per_token=log_probs[:, 1:], kind=self.kind)


def _emission(network: Network) -> Word2VecEmission:
    assert isinstance(network, Assembly) and isinstance(network.emission, Word2VecEmission)
    return network.emission


def _context_view(batch: Batch, mask: Tensor, target_mask: Tensor) -> View:
    """The clean text, with each position of `target_mask` (B, T) predicted from those in its mask.

    The prediction does not use the input at its own position: the query stream has the same mask.
    """
    positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    return View(
        inputs=batch.tokens,
        lengths=batch.lengths,
        attention_mask=ExplicitMask(mask),
        query_attention_mask=ExplicitMask(mask),
        targets=batch.tokens.masked_fill(~target_mask, NO_TARGET),
        clean_positions=positions.expand_as(batch.tokens).masked_fill(~target_mask, -1),
    )


def _sample_true(mask: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """At most `count` of the true entries of each row, sampled at random."""
    keys = _uniform(mask, generator).masked_fill(~mask, -1.0)
    best = keys.topk(min(count, mask.shape[-1]), dim=-1).indices
    return torch.zeros_like(mask).scatter(-1, best, True) & mask


def _uniform(like: Tensor, generator: torch.Generator | None) -> Tensor:
    shape = like.shape
    return torch.rand(shape, generator=generator, device=like.device, dtype=torch.float64)
