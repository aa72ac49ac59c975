"""Unigram as a mixture, p(token) = Σ_z π_z P(token | z): per token, without context; EM steps."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.parts import Emission
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.emission_interfaces import never_predicted_mask


class UnigramMixture(Emission):
    """Mixture of unigrams: p(s) = Σ_z π_z P(s | z), K states with a free table each.

    Takes no hidden state: every position has the same distribution. It has K · V parameters, is
    computed once per batch and gathered at the targets.
    """

    input_kinds: ClassVar[frozenset[str]] = frozenset({"nothing"})
    never_predicted: Tensor

    def __init__(self, states: int, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(states))
        # Random initialisation breaks the symmetry between states.
        self.table = nn.Parameter(torch.randn(states, vocabulary.size) * 0.1)
        self.register_buffer("never_predicted", never_predicted_mask(vocabulary), persistent=False)

    def joint(self) -> Tensor:
        """(K, V) log π_z + log P(s | z)."""
        return F.log_softmax(self.weights, 0)[:, None] + self.log_table().t()

    def log_table(self) -> Tensor:
        """(V, K) log P(s | z)."""
        return F.log_softmax(self.table + self.never_predicted, 1).t()

    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        # Gathered before the sum: a column of -inf has no gradient.
        return torch.logsumexp(self.joint()[:, targets], 0)

    def log_probs(self, hidden: Tensor) -> Tensor:
        mixed = torch.logsumexp(self.joint(), 0)
        return mixed.expand(*hidden.shape[:-1], -1)

    def expected_counts(self, tokens: Tensor) -> Tensor:
        """E step: (K, V) expected counts of each token under each state."""
        counts = torch.bincount(tokens, minlength=self.table.shape[1]).to(self.table.dtype)
        posterior = torch.softmax(self.joint().nan_to_num(neginf=-1e30), dim=0)
        return posterior * counts

    @torch.no_grad()
    def set_from_counts(self, counts: Tensor) -> None:
        """M step: π and P(s | z) in proportion to the expected counts (K, V)."""
        by_state = counts.sum(1)
        self.weights.copy_((by_state / by_state.sum()).log())
        # A floor keeps unseen tokens possible.
        shares = (counts + 1e-6) / (counts + 1e-6).sum(1, keepdim=True)
        self.table.copy_(shares.log())
