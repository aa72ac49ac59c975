"""Joint of masked tokens: CRF-like chain or tree of latent states, summed out exactly."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.emission_interfaces import UnaryJointEmission
from lmlab.emissions.softmax import Softmax
from lmlab.inference.state_joint import StateJoint, log_product
from lmlab.layers.pairwise_potentials import PairwisePotentials, ParentSelection

INITIAL_SELF_AFFINITY = 8.0
"""Initial log-potential of a state with itself relative to others, in nats."""
INITIAL_AFFINITY_STD = 3.0
"""Standard deviation of the initial affinities of states to tokens. States that start too similar
stay so: the factorised solution is a plateau, which only distinct states leave."""
AFFINITY_SCALE = 10.0
"""Token vectors are stored smaller by this factor: affinities must move far, and an Adam step has
the same size for all parameters."""


class JointStates(UnaryJointEmission):
    """Latent-state model of masked tokens, marginalised exactly over states z.

        p(x_1 … x_n) ∝ Σ_z Π_i exp(φ_i(x_i) + g(z_i, x_i) + r_i(z_i)) Π exp(A_i(z_parent, z_i))

    Unary and pairwise potentials, made tractable by K states per masked position: φ is a softmax
    head's logit; r_i(z) = v_z · R h_i; g(z, a) = v_z · f_a; A_i(z, z') = (Q v_z) · (K v_z') with Q
    and K functions of the hidden states at the two positions. The parent is the masked position
    before, or the one that `parents` chooses. g is normalised over tokens and A over the states of
    the later position, so that only r weighs states against each other: else a state with strong
    links to itself wins everywhere, and the others never learn. A single position is a softmax of
    φ(a) + log Σ_z exp(r(z) + g(z, a)). Hidden (B, n, W); cost n (K² + K V).
    """

    def __init__(
        self,
        width: int,
        states: int,
        rank: int,
        vocabulary: Vocabulary,
        *,
        unary: Softmax,
        parents: ParentSelection | None = None,
    ) -> None:
        super().__init__(unary)
        # Only the direction matters, and shorter vectors rotate faster.
        self.vectors = nn.Parameter(torch.randn(states, rank) * 0.1)
        self.tokens = nn.Parameter(
            torch.randn(vocabulary.size, rank) * (INITIAL_AFFINITY_STD / AFFINITY_SCALE)
        )
        self.state_scores = nn.Linear(width, rank)
        nn.init.zeros_(self.state_scores.weight)
        nn.init.zeros_(self.state_scores.bias)
        self.links = PairwisePotentials(width, rank, first=INITIAL_SELF_AFFINITY)
        self.parents = parents

    def affinities(self) -> Tensor:
        """(K, V) g, the affinity of each state to each token."""
        scores = self._units() @ self.tokens.T * AFFINITY_SCALE
        log_normaliser = torch.logsumexp(scores + self.never_predicted, -1, keepdim=True)
        return scores - log_normaliser

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, V) logits of a single masked position, the states marginalised."""
        by_states = log_product(self._states(hidden), self.affinities())
        return self.unary.logits(hidden) + by_states

    def logit(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(N,) the logit of one token for each hidden state (N, W), without the others."""
        by_states = self._states(hidden) + self.affinities().T[targets]
        return self.unary.logit(hidden, targets) + torch.logsumexp(by_states, -1)

    def joint(
        self, hidden: Tensor, lengths: Tensor, *, generator: torch.Generator | None = None
    ) -> StateJoint:
        later = hidden[:, 1:]
        if self.parents is None:
            parents, links = None, self.links(hidden[:, :-1], later, self._units())
        else:
            parents, strengths = self.parents(hidden, generator=generator)
            row = torch.arange(len(hidden), device=hidden.device)[:, None]
            links = self.links(hidden[row, parents[:, 1:]], later, self._units())
            links = links * strengths[..., None, None]
        return StateJoint(
            scores=self.unary.logits(hidden) + self.never_predicted,
            affinities=self.affinities(),
            states=self._states(hidden),
            links=F.log_softmax(links, -1),
            lengths=lengths,
            parents=parents,
        )

    def _states(self, hidden: Tensor) -> Tensor:
        """(…, K) r, the unary score of each state."""
        return self.state_scores(hidden) @ self._units().T

    def _units(self) -> Tensor:
        """(K, R) v, of length one: no state has stronger links by its norm."""
        return F.normalize(self.vectors, dim=-1)
