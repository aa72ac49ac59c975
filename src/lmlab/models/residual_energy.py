"""Residual energy-based model p(x) ∝ p_LM(x) exp(-E(x)), frozen LM; sampled estimate of log Z."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.parts import Backbone
from lmlab.core.protocols import LogProbs
from lmlab.core.state import State
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.emission_interfaces import EnergyEmission
from lmlab.models.energy import EnergyModelBase
from lmlab.objectives.residual_nce import FrozenBaseLM, ResidualNCE

MAX_TOKENS_AT_ONCE = 16384
"""Maximum number of tokens per batch when energies of samples are computed."""
MAX_TEXTS_AT_ONCE = 4096
"""Maximum number of candidates sampled at once for resampling."""
INTERVAL_STANDARD_ERRORS = 2.0
"""Standard errors of log Z by which a score's interval extends beyond both estimates."""


@dataclass(frozen=True, kw_only=True)
class PartitionEstimate:
    """Estimate of log Z = log E_{x ~ LM} exp(-E(x)) from n samples (Deng et al. 2020, theorem 2).

    T_n = log (1/n) Σ_i exp(-E(x_i)) is biased downwards, by Jensen's inequality; and (2n - 1) T_n -
    2 (n - 1) T_{n-1} is biased upwards for large n, where T_{n-1} is the leave-one-out mean. Both
    bounds hold in expectation: those of one sample may lie on the same side of log Z, off by about
    `error`.
    """

    low: float
    high: float
    error: float
    """Standard error of T_n, by the delta method."""
    draws: int

    @classmethod
    def of(cls, energies: Tensor) -> PartitionEstimate:
        """From the energies (n,) of n ≥ 2 samples; cost n."""
        count, scores = len(energies), -energies.double()
        total = torch.logsumexp(scores, 0)
        low = (total - math.log(count)).item()
        weights = (scores - total).exp()
        leave_one_out = (total + torch.log1p(-weights) - math.log(count - 1)).mean().item()
        error = (weights * count).std().item() / math.sqrt(count)
        high = (2 * count - 1) * low - 2 * (count - 1) * leave_one_out
        return cls(low=low, high=high, error=error, draws=count)


class ResidualEnergyModel(EnergyModelBase):
    """Residual EBM: p(x) = p_LM(x) exp(-E(x)) / Z (Deng et al. 2020), at most `max_length` tokens.

    LogProb (estimate), Energy (-log p_LM + E, comparable across lengths), Sample. Z is estimated
    from `draws` samples of the base; a sample is resampled from `candidates` samples of the base.
    """

    objective: ResidualNCE

    @property
    def scores_end(self) -> bool:
        """True: the base language model predicts it."""
        return True

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        backbone: Backbone,
        emission: EnergyEmission,
        objective: ResidualNCE,
        draws: int,
        candidates: int,
    ) -> None:
        super().__init__(
            vocabulary=vocabulary, backbone=backbone, emission=emission, objective=objective
        )
        self.partition_samples = draws
        self.candidates = candidates
        self._partition: tuple[Any, PartitionEstimate] | None = None

    def train(self, mode: bool = True) -> Self:
        # A fused optimiser changes weights without changing their version counter.
        if mode:
            self._partition = None
        return super().train(mode)

    @property
    def base(self) -> FrozenBaseLM:
        return self.objective.base

    def check_length(self, tokens: int) -> None:
        """Also a UserError beyond the base's maximum length: longer texts have no probability."""
        super().check_length(tokens)
        max_length = int(self.base.max_length)
        if tokens - 1 > max_length:
            raise UserError(
                f"a text may have at most {max_length} tokens after <s>, the longest in training, "
                f"got {tokens - 1}; give a shorter text, or train on longer ones."
            )

    def residual(self, batch: Batch) -> Tensor:
        """(B,) E alone, without the base."""
        return self.position_energies(batch).sum(1) + self.constant

    def energy(self, batch: Batch, blanks: Tensor | None = None) -> Tensor:
        """(B,) -log p_LM(x) + E(x), whatever the `blanks`."""
        return self.residual(batch) - self.base.system.log_prob(batch).totals

    def log_prob(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> LogProbs:
        """log p_LM(x) - E(x) - log Z: the base's tokens, and the rest as the text's own term.

        The value uses the upper estimate of log Z, so it is conservative in expectation. Its
        interval extends two standard errors beyond both estimates (see `PartitionEstimate`),

            low = value - 2 error,  high = value + (upper - lower) + 2 error,

        and so covers log p in about 95 % of estimates, for many samples. Z depends on the weights,
        not on the batch: it is estimated once, from a fixed seed, and cached until they change; so
        its error is the same for all texts.
        """
        residual, base = self.residual(batch), self.base.system.log_prob(batch)
        sequence_terms = -residual if base.per_sequence is None else base.per_sequence - residual
        partition = self.partition()
        margin = INTERVAL_STANDARD_ERRORS * partition.error
        totals = base.per_token.sum(1) + sequence_terms
        return LogProbs(
            per_token=base.per_token,
            per_sequence=sequence_terms - partition.high,
            low=totals - (partition.high + margin),
            high=totals - (partition.low - margin),
            kind="estimate",
        )

    def partition(self) -> PartitionEstimate:
        """The estimate of log Z for the current weights and sample size, from a fixed seed."""
        tensors = (*self.parameters(), *self.buffers())
        weights = (n for t in tensors for n in (id(t), t.data_ptr(), t._version))
        key = (self.partition_samples, *weights)
        if self._partition is None or self._partition[0] != key:
            self._partition = (key, self.estimate_partition(self.partition_samples))
        return self._partition[1]

    @torch.no_grad()
    def estimate_partition(
        self, draws: int, *, generator: torch.Generator | None = None
    ) -> PartitionEstimate:
        """A new estimate of log Z. Cost: each sample is generated by the base and encoded once."""
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        return PartitionEstimate.of(
            self._residuals(self.base.sample_texts(draws, generator=generator))
        )

    @torch.no_grad()
    def sample(
        self,
        rows: int,
        *,
        max_length: int,
        condition: Batch | None = None,
        generator: torch.Generator | None = None,
    ) -> list[list[int]]:
        """Importance resampling: of `candidates` texts of the base, one in proportion to exp(-E).

        Each text has its own candidates, so texts are independent; their distribution tends to p as
        the number of candidates grows. Texts are sampled whole, then truncated at `max_length`.
        """
        chosen: list[list[int]] = []
        while len(chosen) < rows:
            count = min(rows - len(chosen), max(1, MAX_TEXTS_AT_ONCE // self.candidates))
            samples = self.base.sample_texts(count * self.candidates, generator=generator)
            weights = torch.softmax(-self._residuals(samples).view(count, -1), -1).cpu()
            probs = weights if generator is None else weights.to(generator.device)
            picks = torch.multinomial(probs, 1, generator=generator)[:, 0].tolist()
            chosen += [samples[row * self.candidates + index] for row, index in enumerate(picks)]
        return [ids[:max_length] for ids in chosen]

    def _residuals(self, texts: list[list[int]]) -> Tensor:
        """(n,) E of sampled texts, without dropout, in batches."""
        device, training = self.constant.device, self.training
        at_once = max(1, MAX_TOKENS_AT_ONCE // (int(self.base.max_length) + 1))
        self.eval()
        try:
            parts = [
                self.residual(self.base.batch(texts[first : first + at_once], device))
                for first in range(0, len(texts), at_once)
            ]
        finally:
            self.train(training)
        return torch.cat(parts)
