"""Joint of masked tokens as a Potts model: learned couplings, or a Gaussian on token vectors."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.emission_interfaces import (
    JointEmission,
    UnaryJointEmission,
    never_predicted_mask,
)
from lmlab.emissions.softmax import Softmax
from lmlab.inference.potts_joint import PottsJoint
from lmlab.layers.pairwise_potentials import PairwisePotentials

INITIAL_TIE = 0.1
"""Initial log-potential of a token with itself relative to others, in nats."""


class PottsEmission(UnaryJointEmission):
    """Potts model of masked tokens, trained by pseudo-likelihood.

        p(x) ∝ exp(Σ_i φ_i(x_i) + Σ_{i<j} (Q_i f(x_i)) · (K_j f(x_j)))

    All pairs, no latent states. The normaliser is intractable in general, so training maximises Σ_i
    log p(x_i | the others) (Besag 1975), at cost n V R; `PottsJoint` documents what is exact.
    Hidden (B, n, W).
    """

    def __init__(self, width: int, rank: int, vocabulary: Vocabulary, *, unary: Softmax) -> None:
        super().__init__(unary)
        self.vectors = nn.Parameter(torch.randn(vocabulary.size, rank) * rank**-0.5)
        self.links = PairwisePotentials(width, rank, first=INITIAL_TIE)

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


MIN_VARIANCE = 0.02
"""Minimum of a position's own variance; token vectors have variance 1 per dimension."""


class PairwiseGaussian(JointEmission):
    """The vectors y of the masked tokens are jointly Gaussian, y ~ N(μ, D + U Uᵀ).

    Mean μ_i, variances D_i and factor loadings U_i (R × M) of a position are functions of its
    hidden state, so that the precision Λ = (D + U Uᵀ)⁻¹ couples every pair; its determinant is part
    of the likelihood. Token vectors are random and fixed: if trained, all would collapse to one
    point. To unembed, the density is evaluated at tokens,

        p(x) ∝ exp(Σ_i b(x_i) - τ/2 (y - μ)ᵀ Λ (y - μ)),  y_i = f(x_i),

    a Potts model whose bias b and scale τ are trained by pseudo-likelihood, while the
    Gaussian is trained by its density alone. Hidden (B, n, W); cost n³ R³ and n V R.
    """

    never_predicted: Tensor
    vectors: Tensor

    def __init__(self, width: int, rank: int, factors: int, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.rank, self.factors = rank, factors
        self.register_buffer("vectors", torch.randn(vocabulary.size, rank))
        self.register_buffer("never_predicted", never_predicted_mask(vocabulary), persistent=False)
        self.mean = nn.Linear(width, rank)
        self.spread = nn.Linear(width, rank)
        self.common = nn.Linear(width, rank * factors)
        self.bias = nn.Parameter(torch.zeros(vocabulary.size))
        self.log_sharpness = nn.Parameter(torch.zeros(()))

    def log_probs(self, hidden: Tensor) -> Tensor:
        flat = hidden.reshape(-1, 1, hidden.shape[-1])
        one = torch.ones(len(flat), dtype=torch.int64, device=hidden.device)
        scores = F.log_softmax(self.joint(flat, one).scores, -1)
        return scores.view(*hidden.shape[:-1], -1)

    def joint(
        self, hidden: Tensor, lengths: Tensor, *, generator: torch.Generator | None = None
    ) -> PottsJoint:
        mean, covariance = self._gaussian(hidden, lengths)
        return self._unembedded(
            mean, torch.cholesky_inverse(torch.linalg.cholesky(covariance)), lengths
        )

    def joint_loss(
        self,
        hidden: Tensor,
        lengths: Tensor,
        tokens: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """(B,) minus the log-density of the token vectors, plus the unembedding loss."""
        mean, covariance = self._gaussian(hidden, lengths)
        root = torch.linalg.cholesky(covariance)
        real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        away = torch.where(real[..., None], self.vectors[tokens] - mean, 0.0).flatten(1)
        white = torch.linalg.solve_triangular(root, away[..., None], upper=False)
        log_root = root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        constant = 0.5 * math.log(2 * math.pi) * self.rank * lengths
        density = -0.5 * white.square().sum((1, 2)) - log_root - constant
        with torch.no_grad():
            precision = torch.cholesky_inverse(root)
        unembedding = self._unembedded(mean.detach(), precision, lengths).pseudo_log_prob(tokens)
        return -density - unembedding

    def _gaussian(self, hidden: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, n, R) μ and (B, n R, n R) D + U Uᵀ; the identity at padding."""
        real = torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]
        variances = MIN_VARIANCE + F.softplus(self.spread(hidden))
        variances = torch.where(real[..., None], variances, 1.0)
        common = self.common(hidden).unflatten(-1, (self.rank, self.factors))
        common = torch.where(real[..., None, None], common, 0.0).flatten(1, 2)
        return self.mean(hidden), torch.diag_embed(variances.flatten(1)) + common @ common.mT

    def _unembedded(self, mean: Tensor, precision: Tensor, lengths: Tensor) -> PottsJoint:
        """The expanded quadratic form: unary terms of tokens, and pairwise terms."""
        rows, count, rank = mean.shape
        sharp = self.log_sharpness.exp()
        blocks = precision.view(rows, count, rank, count, rank).transpose(2, 3)
        pull = (precision @ mean.reshape(rows, -1, 1)).view(rows, count, rank)
        diagonal = blocks.diagonal(dim1=1, dim2=2).permute(0, 3, 1, 2)
        squares = torch.einsum("vr,bnrs,vs->bnv", self.vectors, diagonal, self.vectors)
        scores = sharp * (pull @ self.vectors.T - squares / 2) + self.bias + self.never_predicted
        return PottsJoint(
            scores=scores, ties=-sharp * blocks, vectors=self.vectors, lengths=lengths
        )
