"""A mixture of unigram tables, without context."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.parts import Emission
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.output_embedding import never_predicted_mask


class UnigramMixture(Emission):
    """p(s) = Σ_z π_z P(s | z), K states with a free table each (003, DLM9).

    Reads no hidden state: every place has the same distribution. It is K · V numbers, computed
    once a batch and gathered at the targets.
    """

    input_kinds: ClassVar[frozenset[str]] = frozenset({"nothing"})
    never_predicted: Tensor

    def __init__(self, states: int, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(states))
        # Different starts, or every state would stay the same for ever.
        self.table = nn.Parameter(torch.randn(states, vocabulary.size) * 0.1)
        self.register_buffer("never_predicted", never_predicted_mask(vocabulary), persistent=False)

    def joint(self) -> Tensor:
        """(K, V) log π_z + log P(s | z)."""
        return F.log_softmax(self.weights, 0)[:, None] + F.log_softmax(
            self.table + self.never_predicted, 1
        )

    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        # Gathered before the sum: a column of -inf has no gradient.
        return torch.logsumexp(self.joint()[:, targets], 0)

    def log_probs(self, hidden: Tensor) -> Tensor:
        mixed = torch.logsumexp(self.joint(), 0)
        return mixed.expand(*hidden.shape[:-1], -1)

    def expected_counts(self, tokens: Tensor) -> Tensor:
        """(K, V) how often each state is expected to have produced each token: the E step."""
        seen = torch.bincount(tokens, minlength=self.table.shape[1]).to(self.table.dtype)
        posterior = torch.softmax(self.joint().nan_to_num(neginf=-1e30), dim=0)
        return posterior * seen

    @torch.no_grad()
    def set_from_counts(self, counts: Tensor) -> None:
        """The M step: π and P(s | z) as shares of the expected counts (K, V)."""
        by_state = counts.sum(1)
        self.weights.copy_((by_state / by_state.sum()).log())
        # A floor keeps a token that was never seen possible, if barely.
        shares = (counts + 1e-6) / (counts + 1e-6).sum(1, keepdim=True)
        self.table.copy_(shares.log())
