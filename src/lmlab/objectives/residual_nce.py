"""Data against a language model's own texts: noise contrast for residual models."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.frozen_system import FrozenSystem
from lmlab.core.parts import Network
from lmlab.core.protocols import LogProb, Step, require
from lmlab.core.score_kind import ScoreKind
from lmlab.core.system import System
from lmlab.core.view import NO_TARGET, View
from lmlab.inference.decoding import TokenChoice, ancestral_choice, decode
from lmlab.objectives.energy_pooling import AllPositionsPooling
from lmlab.objectives.objective_interfaces import (
    DATA_LABEL,
    NOISE_LABEL,
    EnergyObjective,
    Seq2SeqObjective,
)

MAX_LOGITS_AT_ONCE = 8_000_000
"""Rows times vocabulary in one step; more rows than that are sampled in several groups."""


class ResidualObjective(EnergyObjective):
    """An objective that tells data from the texts of a base that it owns."""

    kind: ClassVar[ScoreKind] = "estimate"
    needs_mixed_lengths: ClassVar[bool] = True
    base: FrozenBaseLM


class ResidualNCE(ResidualObjective):
    """-Σ_x log σ(-E(x) - log n) - Σ_{x' ~ LM} log σ(E(x') + log n), n texts drawn for each x.

    Noise-contrastive estimation with the base as noise, whose log-probability stands on both sides
    and cancels (Deng et al. 2020): the best E is -log p_data(x) / p_LM(x), and then Z is 1. Texts
    are drawn afresh for every batch, as long as the training split's at most. Rows of the view: the
    B texts, then those drawn; each is asked at place 0 what it is. Cost: 1 + n passes, and drawing.
    """

    def __init__(self, base: FrozenBaseLM, *, negatives: int = 1) -> None:
        super().__init__()
        self.base = base
        self.negatives = negatives
        self.pooling = AllPositionsPooling()

    def setup_data(
        self, network: Network, tokens: NDArray[np.generic], offsets: NDArray[np.int64]
    ) -> None:
        self.base.max_length.fill_(int(np.diff(offsets).max()) - 1)

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        device = batch.tokens.device
        texts = self.base.sample_texts(len(batch) * self.negatives, generator=generator)
        drawn = self.base.batch(texts, device)
        time = max(batch.tokens.shape[1], drawn.tokens.shape[1])
        shape, pad = (len(batch) + len(drawn), time), self.base.system.vocabulary.pad
        inputs = torch.full(shape, pad, device=device)
        inputs[: len(batch), : batch.tokens.shape[1]] = batch.tokens
        inputs[len(batch) :, : drawn.tokens.shape[1]] = drawn.tokens
        first = torch.zeros(shape, dtype=torch.bool, device=device)
        first[:, 0] = True
        targets = torch.full(shape, NO_TARGET, device=device)
        targets[: len(batch), 0], targets[len(batch) :, 0] = DATA_LABEL, NOISE_LABEL
        return View(
            inputs=inputs,
            lengths=torch.cat([batch.lengths, drawn.lengths]),
            attention_mask=self.pooling.attention_mask(first),
            targets=targets,
            clean_positions=torch.where(first, 0, -1),
        )


class FrozenBaseLM(nn.Module):
    """A trained system that steps and scores, frozen, with the texts that it is asked for.

    Texts have at most `longest` tokens after <s>, the longest of the training split; one that
    would go on is cut there, as the training split's are where its corpus cuts. So the base is a
    distribution over such texts, whose probabilities sum to one.
    """

    max_length: Tensor

    def __init__(self, base: System, *, longest: int) -> None:
        super().__init__()
        require(base, Step, "drawing texts from the base")
        require(base, LogProb, "scoring by the base")
        if isinstance(getattr(base, "objective", None), Seq2SeqObjective):
            raise UserError(
                "a residual model needs a base that writes texts by themselves, and this one "
                "writes them beside a source; train one on texts alone (an lstm, say)."
            )
        if base.vocabulary.first is not None:
            raise UserError(
                "a residual model needs texts with an end, and this base was trained on contiguous "
                "text; train one on a corpus of one text a line."
            )
        self.frozen = FrozenSystem(base)
        self.register_buffer("max_length", torch.tensor(longest))

    @property
    def system(self) -> Any:
        return self.frozen.system

    def sample_texts(
        self, rows: int, *, generator: torch.Generator | None = None
    ) -> list[list[int]]:
        """Ancestral samples without <s>, each with its </s> unless it was cut."""
        system, longest = self.system, int(self.max_length)
        at_once = max(1, MAX_LOGITS_AT_ONCE // system.vocabulary.size)
        sampled: list[list[int]] = []
        while len(sampled) < rows:
            count = min(at_once, rows - len(sampled))
            with torch.no_grad():
                sampled += self._sample(count, longest, ancestral_choice(generator))
        return sampled

    def _sample(self, rows: int, longest: int, choose: TokenChoice) -> list[list[int]]:
        end = [] if self.system.vocabulary.end is None else [self.system.vocabulary.end]
        generated = decode(self.system, self.system.start(rows), choose, [longest] * rows)
        return [[*each.tokens, *(end if each.finished else [])] for each in generated]

    def batch(self, texts: list[list[int]], device: torch.device) -> Batch:
        """Drawn texts as a batch, each after its start symbol."""
        vocabulary = self.frozen.system.vocabulary
        rows = [[vocabulary.bos, *ids] for ids in texts]
        return Batch.collate(rows, pad=vocabulary.pad).to(device)
