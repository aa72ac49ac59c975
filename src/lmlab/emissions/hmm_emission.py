"""HMM emission with block structure: each token is emitted by the states of its block."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from lmlab.core.capture import Capture
from lmlab.core.parts import Emission, HiddenStates
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
        every = torch.arange(len(targets), device=targets.device)
        weights = hidden.view(len(targets), -1, tables.states_per_block)[
            every, tables.block[targets]
        ]
        return torch.logsumexp(weights + F.embedding(targets, tables.emission), dim=-1)

    def log_probs(self, hidden: Tensor) -> Tensor:
        tables = self.markov.tables()
        # As products of probabilities, in double precision against underflow.
        weights = hidden.double().exp().view(*hidden.shape[:-1], -1, tables.states_per_block)
        emission = tables.emission.double().exp()
        parts, places = [], []
        for number in range(weights.shape[-2]):
            tokens = torch.nonzero(tables.block == number).squeeze(1)
            parts.append(weights[..., number, :] @ emission[tokens].t())
            places.append(tokens)
        mixed = torch.cat(parts, dim=-1)[..., torch.argsort(torch.cat(places))]
        return mixed.log().to(hidden.dtype)

    def capture_internals(self, hidden: HiddenStates) -> dict[str, Capture]:
        return {
            "state use": Capture(
                values=hidden.values.exp().flatten(0, -2).mean(0),
                axes=("state",),
                caption="Share of all predictions that each state carries; a state near zero is "
                "unused.",
                sums_to_one="state",
            )
        }
