"""Window mixtures: a latent choice among K linear windows, or among word orders."""

from __future__ import annotations

from itertools import permutations
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.backbones.latent_choice import (
    LatentChoiceBackbone,
    TokenContext,
    token_context,
)
from lmlab.core.capture import Capture
from lmlab.core.parts import HiddenStates
from lmlab.core.state import State
from lmlab.core.view import View


class WindowMixture(LatentChoiceBackbone):
    """Mixture of K windows: component k is Σ_{j=1..n} W_{k,j} e(s_{i-j}), with learned weight π_k.

    Tokens before the first one count as zero. Inputs (B, T), components (B, T, K, W): K normalisers
    per position, as all components differ.
    """

    output_kind: ClassVar[str] = "components"

    def __init__(
        self, embedding: nn.Embedding, size: int, count: int, *, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.size = size
        self.count = count
        self.width = embedding.embedding_dim
        self.dropout = nn.Dropout(dropout)
        # Block j of a window is W for the token n - j positions back: oldest first.
        self.mix = nn.Linear(size * self.width, count * self.width, bias=False)
        self.shares = nn.Parameter(torch.zeros(count))

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        recalled = token_context(view, state, keep=self.size - 1)
        vectors = self.dropout(_from_full_window(self.embedding(recalled.ids), recalled, self.size))
        windows = vectors.unfold(1, self.size, 1).transpose(2, 3).flatten(2)
        values = self.mix(windows).unflatten(-1, (self.count, self.width))
        weights = F.log_softmax(self.shares, dim=0)
        return HiddenStates(
            values=values,
            log_weights=weights.expand(*values.shape[:2], -1),
            state=recalled.state,
        )

    def capture_internals(self, view: View) -> dict[str, Capture]:
        return {
            "window shares": Capture(
                values=F.softmax(self.shares, dim=0),
                axes=("choice",),
                caption="P(window), the prior over window sizes before the token is seen.",
                sums_to_one="choice",
            )
        }


class PermutedWindow(LatentChoiceBackbone):
    """Mixture over word orders: component π is Σ_{j=1..n} W_j e(s_{i-π(j)}), with learned P(π).

    The identity comes first, the others in lexicographic order. Tokens before the first one count
    as zero. Every W_j e(s) is computed once per token and shared by all permutations and positions;
    the n! normalisers per position cannot be shared, and are the cost. Inputs (B, T), components
    (B, T, n!, W).
    """

    output_kind: ClassVar[str] = "components"
    picks: Tensor

    def __init__(self, embedding: nn.Embedding, size: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = embedding
        self.size = size
        self.width = embedding.embedding_dim
        self.dropout = nn.Dropout(dropout)
        # Output block j is W for the token in the role j + 1 positions back.
        self.turn = nn.Linear(self.width, size * self.width, bias=False)
        orders = torch.tensor(list(permutations(range(size))))
        self.orders = nn.Parameter(torch.zeros(len(orders)))
        # (n!, n, n): permutation, role of a token, actual position, the oldest first.
        self.register_buffer("picks", F.one_hot(size - 1 - orders, size).float(), persistent=False)

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        recalled = token_context(view, state, keep=self.size - 1)
        vectors = self.dropout(_from_full_window(self.embedding(recalled.ids), recalled, self.size))
        turned = self.turn(vectors).unflatten(-1, (self.size, self.width))
        windows = turned.unfold(1, self.size, 1)  # (B, T, n roles, W, n positions)
        values = torch.einsum("btjws,pjs->btpw", windows, self.picks)
        weights = F.log_softmax(self.orders, dim=0)
        return HiddenStates(
            values=values,
            log_weights=weights.expand(*values.shape[:2], -1),
            state=recalled.state,
        )

    def capture_internals(self, view: View) -> dict[str, Capture]:
        return {
            "ordering prior": Capture(
                values=F.softmax(self.orders, dim=0),
                axes=("choice",),
                caption="P(ordering of the window); 0 is the order of the text, the others follow "
                "in lexicographic order.",
                sums_to_one="choice",
            )
        }


def _from_full_window(vectors: Tensor, recalled: TokenContext, size: int) -> Tensor:
    """(B, n - 1 + T, W): zeros before the first token, so that every position has a window of n."""
    return F.pad(vectors, (0, 0, size - 1 - recalled.past_length, 0))
