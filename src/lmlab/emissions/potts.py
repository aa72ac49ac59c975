"""Tokens of several blanks together, every pair of blanks tied: a Potts model."""

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
"""How much better a token goes with itself than with others at first, in nats."""


class PottsEmission(JointEmission):
    """p(x) ∝ exp(Σ_i φ_i(x_i) + Σ_{i<j} (Q_i f(x_i)) · (K_j f(x_j))), by pseudo-likelihood (000).

    The energy as 000 writes it, with all pairs and no states. It can't be summed in general, so
    training maximises Σ_i log p(x_i | the others) (Besag 1975), which costs n V R; `PottsJoint`
    says what is exact then and what is not. Hidden (B, n, W).
    """

    def __init__(self, width: int, rank: int, vocabulary: Vocabulary, *, unary: Softmax) -> None:
        super().__init__()
        self.unary = unary
        self.vectors = nn.Parameter(torch.randn(vocabulary.size, rank) * rank**-0.5)
        self.links = PairwisePotentials(width, rank, first=INITIAL_TIE)

    @property
    def weight(self) -> Tensor:
        """(V, W) vectors of the tokens."""
        return self.unary.weight

    @property
    def never_predicted(self) -> Tensor:
        """(V,) -inf at tokens that are never predicted, 0 elsewhere."""
        return self.unary.never_predicted

    def log_probs(self, hidden: Tensor) -> Tensor:
        return F.log_softmax(self.logits(hidden) + self.never_predicted, dim=-1)

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, V) scores of one blank alone."""
        return self.unary.logits(hidden)

    def logit(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(N,) the score of one token for each hidden state (N, W)."""
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
