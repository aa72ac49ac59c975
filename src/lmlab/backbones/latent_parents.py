"""Bigrams from one or two latent earlier words, summed out: priors, types, unigram restart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.backbones.latent_choice import LatentChoiceBackbone, token_context
from lmlab.core.capture import Capture
from lmlab.core.parts import HiddenStates
from lmlab.core.state import State, TensorState
from lmlab.core.view import View
from lmlab.emissions.pair_softmax import pairs_within
from lmlab.layers.matrix_product import Linear


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
        context = token_context(view, state, keep=self.prior.memory_length)
        values = self.dropout(self.embedding(context.ids))
        weights = self.prior(context.past_length, context.time, values)
        if self.transitions is not None:
            values = self.transitions(values)
            weights = (weights[..., None] + self.transitions.log_shares()).flatten(-2)
        return HiddenStates(
            values=values, log_weights=weights.expand(len(values), -1, -1), state=context.state
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


class TypedTransitions(nn.Module):
    """R transition matrices from a parent to its prediction; the type r is latent, with prior π_r.

    Vectors (B, S, W) become (B, S · R, W), the types of a token adjacent.
    """

    def __init__(self, width: int, types: int = 1) -> None:
        super().__init__()
        self.types = types
        self.turn = Linear(width, types * width, bias=False)
        if types > 1:
            self.shares = nn.Parameter(torch.zeros(types))

    def log_shares(self) -> Tensor:
        """(R,) log π."""
        if self.types == 1:  # a single type has prior 1, without parameters
            return self.turn.weight.new_zeros(1)
        return F.log_softmax(self.shares, dim=0)

    def forward(self, vectors: Tensor) -> Tensor:
        transformed: Tensor = self.turn(vectors)
        return transformed.reshape(len(vectors), -1, vectors.shape[-1])


class ParentPrior(nn.Module, ABC):
    """Prior P(a | i) over the parent a of the token predicted at position i."""

    max_distance: int | None
    """Maximum distance to a parent in tokens, the latest counted; None is no limit."""

    @property
    def memory_length(self) -> int | None:
        """Tokens to retain for the next position."""
        return None if self.max_distance is None else self.max_distance - 1

    @abstractmethod
    def scores(self, position: Tensor, distance: Tensor) -> Tensor:
        """(T, S) unnormalised log-weights of the tokens `back` positions (T, S) before the latest.

        `place` (T, 1) counts from 0. Entries beyond the maximum distance or in the future are
        ignored, and may hold any finite number.
        """

    def forward(self, past_length: int, time: int, like: Tensor) -> Tensor:
        """(T, S) log P(a | i) of T positions over S = before + T tokens, -inf where it is zero."""
        position = torch.arange(past_length, past_length + time, device=like.device)[:, None]
        distance = position - torch.arange(past_length + time, device=like.device)
        visible = (
            distance >= 0
            if self.max_distance is None
            else (distance >= 0) & (distance < self.max_distance)
        )
        scores = self.scores(position, distance).to(like.dtype)
        return F.log_softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)


class UniformPrior(ParentPrior):
    """Uniform over the last `reach` tokens, or over all tokens so far if None.

    Without a limit the memory grows with the text.
    """

    def __init__(self, max_distance: int | None = 5) -> None:
        super().__init__()
        self.max_distance = max_distance

    def scores(self, position: Tensor, distance: Tensor) -> Tensor:
        return torch.zeros(distance.shape, device=distance.device)


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

    def scores(self, position: Tensor, distance: Tensor) -> Tensor:
        assert self.max_distance is not None
        row = position.clamp(max=self.max_distance - 1)
        column = (row - distance).clamp(min=0).minimum(row)
        return PRIOR_SCALE * self.table[row * (row + 1) // 2 + column]


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
        self.turn_first = Linear(self.width, self.width, bias=False)
        self.turn_second = Linear(self.width, self.width, bias=False)

    def pairs(self, count: int) -> tuple[Tensor, Tensor]:
        """(P,), (P,) the tokens a and b of every pair of S that some position can see."""
        return pairs_within(self.first.max_distance, count, self.embedding.weight.device)

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        context = token_context(view, state, keep=self.first.memory_length)
        vectors = self.dropout(self.embedding(context.ids))
        a, b = self.pairs(context.ids.shape[1])
        first = self.first(context.past_length, context.time, vectors)
        second = self.second(context.past_length, context.time, vectors)
        weights = first[:, a] + second[:, b]
        return HiddenStates(
            values=self.combine(self.turn_first(vectors), self.turn_second(vectors)),
            log_weights=weights.expand(len(vectors), -1, -1),
            state=context.state,
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
                    -1, positions, posterior
                ),
                axes=("batch", "time", "source"),
                caption=f"For each predicted token, the posterior over its {name} parent, an "
                "earlier token.",
                sums_to_one="source",
            )
            for name, positions in pairs
        }


class FactoredParents(TwoLatentParents):
    """`TwoLatentParents` for `PairSoftmax`, which adds the halves and normalises them faster.

    Values (B, S, 2 W): each token as the first parent, and as the second.
    """

    def combine(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.cat([first, second], dim=-1)


class Renewal(LatentChoiceBackbone):
    """Mixture of latent parents and a restart: λ Q + (1 - λ) Σ_a P(a | i) W(· | s_a).

    Q = softmax(e · q) is the restart distribution, independent of context. λ is 1/2, or learned
    from there with `learned`. Sources (B, 1 + S · R, W), q first; the cost is that of the parents.
    """

    output_kind: ClassVar[str] = "sources"

    def __init__(self, parents: LatentParents, *, learned: bool = False) -> None:
        super().__init__()
        self.parents = parents
        self.width = parents.width
        self.fresh = nn.Parameter(torch.randn(self.width) * self.width**-0.5)
        if learned:
            self.balance = nn.Parameter(torch.zeros(2))
        else:
            self.register_buffer("balance", torch.zeros(2), persistent=False)

    def initial_state(self, rows: int) -> TensorState:
        return self.parents.initial_state(rows)

    def log_balance(self) -> Tensor:
        """(2,) log λ and log(1 - λ)."""
        return F.log_softmax(self.balance, dim=0)

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        hidden = self.parents(view, state)
        log_restart, log_continue = self.log_balance()
        (rows, time), weights = view.inputs.shape, hidden.log_weights
        assert weights is not None
        return HiddenStates(
            values=torch.cat([self.fresh.expand(rows, 1, -1), hidden.values], dim=1),
            log_weights=torch.cat(
                [log_restart.expand(rows, time, 1), log_continue + weights], dim=2
            ),
            state=hidden.state,
        )

    def capture_internals(self, view: View) -> dict[str, Capture]:
        captures = self.parents.capture_internals(view)
        captures["renewal weight"] = Capture(
            values=self.log_balance().exp(),
            axes=("choice",),
            caption="Prior probability that a token starts afresh (0) or follows from an earlier "
            "token (1).",
            sums_to_one="choice",
        )
        return captures

    def explain(self, posterior: Tensor) -> dict[str, Capture]:
        by_type = posterior[..., 1:].unflatten(-1, (-1, self.parents.types)).sum(-2)
        return {
            "posterior": Capture(
                values=torch.cat([posterior[..., :1], by_type], dim=-1),
                axes=("batch", "time", "choice"),
                caption="The posterior over what each token follows from: 0 is a fresh start, the "
                "others are the types of transition from an earlier token.",
                sums_to_one="choice",
            )
        }


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
