"""Potts joint emission: every pair of masked positions coupled, a Markov random field."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.emission_interfaces import JointEmission
from lmlab.emissions.softmax import Softmax
from lmlab.inference.potts_joint import PottsJoint
from lmlab.layers.pairwise_potentials import PairwisePotentials

INITIAL_TIE = 0.1
"""Initial log-potential of a token with itself relative to others, in nats."""


class PottsEmission(JointEmission):
    """Potts model of masked tokens, trained by pseudo-likelihood.

        p(x) ∝ exp(Σ_i φ_i(x_i) + Σ_{i<j} (Q_i f(x_i)) · (K_j f(x_j)))

    All pairs, no latent states. The normaliser is intractable in general, so training maximises Σ_i
    log p(x_i | the others) (Besag 1975), at cost n V R; `PottsJoint` documents what is exact.
    Hidden (B, n, W).
    """

    def __init__(self, width: int, rank: int, vocabulary: Vocabulary, *, unary: Softmax) -> None:
        super().__init__()
        self.unary = unary
        self.vectors = nn.Parameter(torch.randn(vocabulary.size, rank) * rank**-0.5)
        self.links = PairwisePotentials(width, rank, first=INITIAL_TIE)

    @property
    def weight(self) -> Tensor:
        """(V, W) token vectors."""
        return self.unary.weight

    @property
    def never_predicted(self) -> Tensor:
        """(V,) -inf at tokens that are never predicted, 0 elsewhere."""
        return self.unary.never_predicted

    def log_probs(self, hidden: Tensor) -> Tensor:
        return F.log_softmax(self.logits(hidden) + self.never_predicted, dim=-1)

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, V) logits of a single masked position."""
        return self.unary.logits(hidden)

    def logit(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(N,) the logit of one token for each hidden state (N, W)."""
        return self.unary.logit(hidden, targets)

    def joint(
        self, hidden: Tensor, lengths: Tensor, *, generator: torch.Generator | None = None
    ) -> PottsJoint:
        queries, keys = self.links.matrices(hidden)
        return PottsJoint(
            scores=self.logits(hidden) + self.never_predicted,
            # Q_iᵀ K_j for every i and j.
            ties=queries.mT[:, :, None] @ keys[:, None],
            vectors=self.vectors,
            lengths=lengths,
        )

    def joint_loss(
        self,
        hidden: Tensor,
        lengths: Tensor,
        tokens: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """(B,) minus the pseudo-log-likelihood of tokens (B, n)."""
        return -self.joint(hidden, lengths).pseudo_log_prob(tokens)
