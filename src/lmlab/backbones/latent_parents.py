"""Latent parents: each token is generated from one earlier token, a latent choice."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.backbones.latent_choice import (
    LatentChoiceBackbone,
    token_context,
)
from lmlab.core.capture import Capture
from lmlab.core.parts import HiddenStates
from lmlab.core.state import State
from lmlab.core.view import View


class ParentPrior(nn.Module):
    """Prior P(a | i) over the parent a of the token predicted at position i."""

    max_distance: int | None
    """Maximum distance to a parent in tokens, the latest counted; None is no limit."""

    @property
    def memory_length(self) -> int | None:
        """Tokens to retain for the next position."""
        return None if self.max_distance is None else self.max_distance - 1

    def scores(self, place: Tensor, back: Tensor) -> Tensor:
        """(T, S) unnormalised log-weights of the tokens `back` positions (T, S) before the latest.

        `place` (T, 1) counts from 0. Entries beyond the maximum distance or in the future are
        ignored, and may hold any finite number.
        """
        raise TypeError(f"{type(self).__name__} does not define scores")

    def forward(self, before: int, time: int, like: Tensor) -> Tensor:
        """(T, S) log P(a | i) of T positions over S = before + T tokens, -inf where it is zero."""
        place = torch.arange(before, before + time, device=like.device)[:, None]
        back = place - torch.arange(before + time, device=like.device)
        seen = back >= 0 if self.max_distance is None else (back >= 0) & (back < self.max_distance)
        scores = self.scores(place, back).to(like.dtype)
        return F.log_softmax(scores.masked_fill(~seen, float("-inf")), dim=-1)


class UniformPrior(ParentPrior):
    """Uniform over the last `reach` tokens, or over all tokens so far if None.

    Without a limit the memory grows with the text.
    """

    def __init__(self, reach: int | None = 5) -> None:
        super().__init__()
        self.max_distance = reach

    def scores(self, place: Tensor, back: Tensor) -> Tensor:
        return torch.zeros(back.shape, device=back.device)


PRIOR_SCALE = 8.0
"""Scale of a learned prior's logits. An Adam step moves a parameter by at most the learning rate,
and a prior must move several nats to select one token."""


class LearnedPrior(ParentPrior):
    """Learned table P(a | i) = softmax_a(8 t_{i,a}), uniform at initialisation.

    The first L positions have a row each, of one weight for every token so far: L (L + 1) / 2
    parameters. Later positions use the last row, shifted, over the last L tokens. So any length is
    defined and the memory is bounded.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self.max_distance = length
        # The rows in sequence: the lower triangle, without future tokens.
        self.table = nn.Parameter(torch.zeros(length * (length + 1) // 2))

    def scores(self, place: Tensor, back: Tensor) -> Tensor:
        assert self.max_distance is not None
        row = place.clamp(max=self.max_distance - 1)
        inside = (row - back).clamp(min=0).minimum(row)
        return PRIOR_SCALE * self.table[row * (row + 1) // 2 + inside]


class TypedTransitions(nn.Module):
    """R transition matrices from a parent to its prediction; the type r is latent, with prior π_r.

    Vectors (B, S, W) become (B, S · R, W), the types of a token adjacent.
    """

    def __init__(self, width: int, types: int = 1) -> None:
        super().__init__()
        self.types = types
        self.turn = nn.Linear(width, types * width, bias=False)
        if types > 1:
            self.shares = nn.Parameter(torch.zeros(types))

    def log_shares(self) -> Tensor:
        """(R,) log π."""
        if self.types == 1:  # a single type has prior 1, without parameters
            return self.turn.weight.new_zeros(1)
        return F.log_softmax(self.shares, dim=0)

    def forward(self, vectors: Tensor) -> Tensor:
        turned: Tensor = self.turn(vectors)
        return turned.reshape(len(vectors), -1, vectors.shape[-1])


class LatentParents(LatentChoiceBackbone):
    """Latent parents: source (a, r) is W_r e(s_a), with weight P(a | i) π_r at position i.

    Without `transitions` the source is the token's embedding. Position i predicts the token after
    inputs 0 … i, each of which may be its parent. Inputs (B, T), sources (B, S · R, W) with S the
    visible tokens; the emission normalises each source once, however many positions use it, so R
    types cost as much as R bigram models.
    """

    output_kind: ClassVar[str] = "sources"

    def __init__(
        self,
        embedding: nn.Embedding,
        prior: ParentPrior,
        transitions: TypedTransitions | None = None,
        *,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.prior = prior
        self.transitions = transitions
        self.dropout = nn.Dropout(dropout)
        self.width = embedding.embedding_dim

    @property
    def types(self) -> int:
        """R, sources per token."""
        return 1 if self.transitions is None else self.transitions.types

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        recalled = token_context(view, state, keep=self.prior.memory_length)
        values = self.dropout(self.embedding(recalled.ids))
        weights = self.prior(recalled.past_length, recalled.time, values)
        if self.transitions is not None:
            values = self.transitions(values)
            weights = (weights[..., None] + self.transitions.log_shares()).flatten(-2)
        return HiddenStates(
            values=values,
            log_weights=weights.expand(len(values), -1, -1),
            state=recalled.state,
        )

    def capture_internals(self, view: View) -> dict[str, Capture]:
        captures = {"parent prior": capture_prior(self.prior, view, self.embedding.weight)}
        if self.transitions is not None and self.types > 1:
            captures["type shares"] = Capture(
                values=self.transitions.log_shares().exp(),
                axes=("choice",),
                caption="P(type of transition), before anything is seen.",
                sums_to_one="choice",
            )
        return captures

    def explain(self, posterior: Tensor) -> dict[str, Capture]:
        by_type = posterior.unflatten(-1, (-1, self.types))
        captures = {
            "posterior": Capture(
                values=by_type.sum(-1),
                axes=("batch", "time", "source"),
                caption="For each predicted token, the posterior over the earlier token that it "
                "follows from (its parent).",
                sums_to_one="source",
            )
        }
        if self.types > 1:
            captures["type posterior"] = Capture(
                values=by_type.sum(-2),
                axes=("batch", "time", "choice"),
                caption="For each predicted token, P(type of transition | tokens), summed over its "
                "possible parents.",
                sums_to_one="choice",
            )
        return captures


def capture_prior(prior: ParentPrior, view: View, like: Tensor) -> Capture:
    """The prior over the view's positions, or over all learned rows."""
    time = view.inputs.shape[1]
    if isinstance(prior, LearnedPrior):
        assert prior.max_distance is not None
        time = prior.max_distance
    return Capture(
        values=prior(0, time, like).exp(),
        axes=("time", "source"),
        caption=(
            "The prior over the parent of each position, before the token is seen: the diagonal "
            "is the previous token, input 0 the start token."
        ),
        sums_to_one="source",
    )
