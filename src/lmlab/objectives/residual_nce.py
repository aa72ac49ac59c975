"""Noise-contrastive estimation (NCE) of residual energies: data against samples of a frozen LM."""

from __future__ import annotations

from typing import ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lmlab.core.assembly import ComposedSystem
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.parts import Network
from lmlab.core.protocols import Decoder, LogProb, ScoringDecoder, require
from lmlab.core.score import ScoreKind
from lmlab.core.system import FrozenSystem, System
from lmlab.core.view import NO_TARGET, View
from lmlab.inference.decoding import TokenChoice, ancestral_choice, decode
from lmlab.objectives.corruption_nce import AllPositionsPooling
from lmlab.objectives.objective_interfaces import (
    DATA_LABEL,
    NOISE_LABEL,
    EnergyObjective,
    Seq2SeqObjective,
)

MAX_LOGITS_AT_ONCE = 8_000_000
"""Maximum rows times vocabulary per step; larger batches are sampled in groups."""


class ResidualNCE(EnergyObjective):
    """NCE: -Σ_x log σ(-E(x) - log n) - Σ_{x' ~ LM} log σ(E(x') + log n), n samples for each x.

    NCE with the base LM as noise, whose log-probability cancels (Deng et al. 2020): the optimum is
    E = -log p_data(x) / p_LM(x), with Z = 1. Texts are sampled anew for every batch, at most as
    long as the training split's. Rows of the view: the B texts, then the samples, each with its
    label at position 0. Cost: 1 + n passes, and the sampling.
    """

    kind: ClassVar[ScoreKind] = "estimate"
    needs_mixed_lengths: ClassVar[bool] = True

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
        noise = self.base.batch(texts, device)
        time = max(batch.tokens.shape[1], noise.tokens.shape[1])
        shape, pad = (len(batch) + len(noise), time), self.base.system.vocabulary.pad
        inputs = torch.full(shape, pad, device=device)
        inputs[: len(batch), : batch.tokens.shape[1]] = batch.tokens
        inputs[len(batch) :, : noise.tokens.shape[1]] = noise.tokens
        first = torch.zeros(shape, dtype=torch.bool, device=device)
        first[:, 0] = True
        targets = torch.full(shape, NO_TARGET, device=device)
        targets[: len(batch), 0], targets[len(batch) :, 0] = DATA_LABEL, NOISE_LABEL
        return View(
            inputs=inputs,
            lengths=torch.cat([batch.lengths, noise.lengths]),
            attention_mask=self.pooling.attention_mask(first),
            targets=targets,
            clean_positions=torch.where(first, 0, -1),
        )


class FrozenBaseLM(nn.Module):
    """A trained, frozen autoregressive model, with sampling of complete texts.

    Texts have at most `max_length` tokens after <s>, the maximum of the training split; longer ones
    are truncated there, as in the training split. So the base is a normalised distribution over
    such texts.
    """

    max_length: Tensor

    def __init__(self, base: System, *, max_length: int) -> None:
        super().__init__()
        require(base, Decoder, "sampling from the base")
        require(base, LogProb, "scoring with the base")
        if isinstance(base, ComposedSystem) and isinstance(base.objective, Seq2SeqObjective):
            raise UserError(
                "a residual model needs an unconditional language model as its base, and this "
                "one is conditioned on a source; train one on texts alone (an lstm, say)."
            )
        if base.vocabulary.first is not None:
            raise UserError(
                "a residual model needs texts with an end token, and this base was trained on "
                "contiguous text; train one on a corpus of one text per line."
            )
        self.frozen = FrozenSystem(base)
        self.register_buffer("max_length", torch.tensor(max_length))

    @property
    def system(self) -> ScoringDecoder:
        # As required of the base above; to check a protocol again costs 0.1 ms at every use.
        return cast(ScoringDecoder, self.frozen.system)

    def sample_texts(
        self, rows: int, *, generator: torch.Generator | None = None
    ) -> list[list[int]]:
        """Ancestral samples without <s>, each with its </s> unless truncated."""
        system, max_length = self.system, int(self.max_length)
        at_once = max(1, MAX_LOGITS_AT_ONCE // system.vocabulary.size)
        sampled: list[list[int]] = []
        while len(sampled) < rows:
            count = min(at_once, rows - len(sampled))
            with torch.no_grad():
                sampled += self._sample(count, max_length, ancestral_choice(generator))
        return sampled

    def _sample(self, rows: int, max_length: int, choose: TokenChoice) -> list[list[int]]:
        system = self.system
        end = [] if system.vocabulary.end is None else [system.vocabulary.end]
        generated = decode(system, system.start(rows), choose, [max_length] * rows)
        return [[*sample.tokens, *(end if sample.finished else [])] for sample in generated]

    def batch(self, texts: list[list[int]], device: torch.device) -> Batch:
        """Sampled texts as a batch, each after its start token."""
        vocabulary = self.frozen.system.vocabulary
        rows = [[vocabulary.bos, *ids] for ids in texts]
        return Batch.collate(rows, pad=vocabulary.pad).to(device)
