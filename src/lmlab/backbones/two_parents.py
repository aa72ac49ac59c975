"""Two additive latent parents: each token is generated from a pair of earlier tokens."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from lmlab.backbones.latent_choice import (
    LatentChoiceBackbone,
    token_context,
)
from lmlab.backbones.latent_parents import (
    ParentPrior,
    capture_prior,
)
from lmlab.core.capture import Capture
from lmlab.core.parts import HiddenStates
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.layers.pair_normalisers import pairs_within


class TwoLatentParents(LatentChoiceBackbone):
    """Two latent parents: source (a, b) is W_1 e(s_a) + W_2 e(s_b), weight P_1(a | i) P_2(b | i).

    Both parents may be the same token. A pair is a source shared by all positions that see both
    tokens: of the n² pairs of a position's last n tokens only the 2n - 1 with the latest are new,
    and only these are normalised. Inputs (B, T), sources (B, P, W) with P at most (2n - 1) S;
    without a maximum distance all S² pairs.
    """

    output_kind: ClassVar[str] = "sources"

    def __init__(
        self,
        embedding: nn.Embedding,
        first: ParentPrior,
        second: ParentPrior,
        *,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        assert first.max_distance == second.max_distance, "both parents look back equally far"
        self.embedding = embedding
        self.first = first
        self.second = second
        self.dropout = nn.Dropout(dropout)
        self.width = embedding.embedding_dim
        self.turn_first = nn.Linear(self.width, self.width, bias=False)
        self.turn_second = nn.Linear(self.width, self.width, bias=False)

    def pairs(self, count: int) -> tuple[Tensor, Tensor]:
        """(P,), (P,) the tokens a and b of every pair of S that some position can see."""
        return pairs_within(self.first.max_distance, count, self.embedding.weight.device)

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        recalled = token_context(view, state, keep=self.first.memory_length)
        vectors = self.dropout(self.embedding(recalled.ids))
        a, b = self.pairs(recalled.ids.shape[1])
        first = self.first(recalled.past_length, recalled.time, vectors)
        second = self.second(recalled.past_length, recalled.time, vectors)
        weights = first[:, a] + second[:, b]
        return HiddenStates(
            values=self.combine(self.turn_first(vectors), self.turn_second(vectors)),
            log_weights=weights.expand(len(vectors), -1, -1),
            state=recalled.state,
        )

    def combine(self, first: Tensor, second: Tensor) -> Tensor:
        """(B, P, W) of all pairs, from each token (B, S, W) as first and as second parent."""
        a, b = self.pairs(first.shape[1])
        return first[:, a] + second[:, b]

    def capture_internals(self, view: View) -> dict[str, Capture]:
        like = self.embedding.weight
        return {
            "first parent prior": capture_prior(self.first, view, like),
            "second parent prior": capture_prior(self.second, view, like),
        }

    def explain(self, posterior: Tensor) -> dict[str, Capture]:
        time = posterior.shape[1]
        pairs = zip(("first", "second"), self.pairs(time), strict=True)
        return {
            f"{name} parent posterior": Capture(
                values=posterior.new_zeros(posterior.shape[0], time, time).index_add_(
                    -1, places, posterior
                ),
                axes=("batch", "time", "source"),
                caption=f"For each predicted token, the posterior over its {name} parent, an "
                "earlier token.",
                sums_to_one="source",
            )
            for name, places in pairs
        }


class FactoredParents(TwoLatentParents):
    """`TwoLatentParents` for `PairSoftmax`, which adds the halves and normalises them faster.

    Values (B, S, 2 W): each token as the first parent, and as the second.
    """

    def combine(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.cat([first, second], dim=-1)
