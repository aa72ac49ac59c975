"""Data against a language model's own texts: noise contrast for residual models."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from lmlab.core.batch import Batch
from lmlab.core.energies import DATA, OTHER
from lmlab.core.parts import Network
from lmlab.core.residual import LanguageModelBase, ResidualObjective
from lmlab.core.view import NO_TARGET, View
from lmlab.objectives.pooling import AllPlaces


class DataAgainstSamples(ResidualObjective):
    """-Σ_x log σ(-E(x) - log n) - Σ_{x' ~ LM} log σ(E(x') + log n), n texts drawn for each x.

    Noise-contrastive estimation with the base as noise, whose log-probability stands on both sides
    and cancels (Deng et al. 2020): the best E is -log p_data(x) / p_LM(x), and then Z is 1. Texts
    are drawn afresh for every batch, as long as the training split's at most. Rows of the view: the
    B texts, then those drawn; each is asked at place 0 what it is. Cost: 1 + n passes, and drawing.
    """

    def __init__(self, base: LanguageModelBase, *, negatives: int = 1) -> None:
        super().__init__()
        self.base = base
        self.negatives = negatives
        self.pooling = AllPlaces()

    def meet_data(
        self, network: Network, tokens: NDArray[np.generic], offsets: NDArray[np.int64]
    ) -> None:
        self.base.longest.fill_(int(np.diff(offsets).max()) - 1)

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        device = batch.tokens.device
        texts = self.base.draw(len(batch) * self.negatives, generator=generator)
        drawn = self.base.batch(texts, device)
        time = max(batch.tokens.shape[1], drawn.tokens.shape[1])
        shape, pad = (len(batch) + len(drawn), time), self.base.system.vocabulary.pad
        inputs = torch.full(shape, pad, device=device)
        inputs[: len(batch), : batch.tokens.shape[1]] = batch.tokens
        inputs[len(batch) :, : drawn.tokens.shape[1]] = drawn.tokens
        first = torch.zeros(shape, dtype=torch.bool, device=device)
        first[:, 0] = True
        targets = torch.full(shape, NO_TARGET, device=device)
        targets[: len(batch), 0], targets[len(batch) :, 0] = DATA, OTHER
        return View(
            inputs=inputs,
            lengths=torch.cat([batch.lengths, drawn.lengths]),
            visibility=self.pooling.visibility(first),
            targets=targets,
            origins=torch.where(first, 0, -1),
        )
