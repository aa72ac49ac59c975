"""HMM emission, block-sparse: each token is emitted only by the states of its block."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from lmlab.core.capture import Capture
from lmlab.core.parts import Emission, HiddenStates
from lmlab.emissions.emission_interfaces import STATE_USAGE, usage_capture
from lmlab.layers.hmm_parameters import HMMParameters


class HMMEmission(Emission):
    """Block HMM emission: p(s | h) = Σ_{z in the block of s} w_z(h) P(s | z), h the log-weights.

    Hidden (…, K). Cost K / C per target, V · K / C for the whole distribution.
    """

    input_kinds: ClassVar[frozenset[str]] = frozenset({"states"})

    def __init__(self, markov: HMMParameters) -> None:
        super().__init__()
        self.markov = markov

    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        tables = self.markov.tables()
        rows = torch.arange(len(targets), device=targets.device)
        weights = hidden.view(len(targets), -1, tables.states_per_block)[
            rows, tables.block[targets]
        ]
        return torch.logsumexp(weights + F.embedding(targets, tables.emission), dim=-1)

    def log_probs(self, hidden: Tensor) -> Tensor:
        tables = self.markov.tables()
        # As products of probabilities, in double precision against underflow.
        weights = hidden.double().exp().view(*hidden.shape[:-1], -1, tables.states_per_block)
        emission = tables.emission.double().exp()
        parts, token_ids = [], []
        for number in range(weights.shape[-2]):
            tokens = torch.nonzero(tables.block == number).squeeze(1)
            parts.append(weights[..., number, :] @ emission[tokens].t())
            token_ids.append(tokens)
        mixed = torch.cat(parts, dim=-1)[..., torch.argsort(torch.cat(token_ids))]
        return mixed.log().to(hidden.dtype)

    def capture_internals(self, hidden: HiddenStates) -> dict[str, Capture]:
        return {"state use": usage_capture(hidden.values.exp(), STATE_USAGE)}
