"""Fixed-window backbones: none, bigram, n-gram ids, CBOW context, log-bilinear and its mixtures."""

from __future__ import annotations

from itertools import permutations
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.backbones.latent_choice import LatentChoiceBackbone, TokenContext, token_context
from lmlab.core.attention_mask import CausalMask, ExplicitMask
from lmlab.core.capture import Capture
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.state import State, TensorState
from lmlab.core.view import View
from lmlab.core.vocabulary import NO_TOKEN
from lmlab.layers.matrix_product import Linear


class NoContext(Backbone):
    """No context: the emission alone is the model. Values (B, T, 0)."""

    output_kind: ClassVar[str] = "nothing"
    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask,)
    width = 0

    def initial_state(self, rows: int) -> TensorState:
        return TensorState({"nothing": torch.zeros(rows, 0)})

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        rows, time = view.inputs.shape[:2]
        empty = torch.zeros(rows, time, 0, device=view.inputs.device)
        return HiddenStates(values=empty, state=state or self.initial_state(rows))


class PreviousToken(Backbone):
    """Bigram context: h_i = e(s_{i-1}), the embedding of the previous token.

    Inputs (B, T), values (B, T, W). Stateless.
    """

    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask,)

    def __init__(self, embedding: nn.Embedding, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = embedding
        self.width = embedding.embedding_dim
        self.dropout = nn.Dropout(dropout)

    def initial_state(self, rows: int) -> TensorState:
        return TensorState({"nothing": torch.zeros(rows, 0)})

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        values = self.dropout(self.embedding(view.inputs))
        return HiddenStates(values=values, state=state or self.initial_state(len(view.inputs)))


class NgramContext(Backbone):
    """N-gram context: the last n - 1 token ids, the latest last, for table lookup.

    Inputs (B, T), values (B, T, n - 1) int64; `NO_TOKEN` before the first input.
    """

    output_kind: ClassVar[str] = "contexts"
    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask,)

    def __init__(self, size: int) -> None:
        super().__init__()
        self.width = size

    def initial_state(self, rows: int) -> TensorState:
        return TensorState({"last": torch.full((rows, self.width), NO_TOKEN)})

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        previous = self.initial_state(len(view.inputs)) if state is None else state
        assert isinstance(previous, TensorState)
        joined = torch.cat([previous["last"].to(view.inputs.device), view.inputs], dim=1)
        time = view.inputs.shape[1]
        if self.width == 0:
            return HiddenStates(values=joined.new_zeros(*view.inputs.shape, 0), state=previous)
        values = joined.unfold(1, self.width, 1)[:, 1:]
        return HiddenStates(values=values, state=TensorState({"last": joined[:, time:]}))


class ContextWords(Backbone):
    """The ids of the inputs visible to each position, in reading order, then `NO_TOKEN`.

    Inputs (B, T), values (B, T, M) int64, M the largest number visible, at least 1. It has no
    parameters: the emission embeds the ids. Cost B · T² for the order.
    """

    output_kind: ClassVar[str] = "contexts"
    supported_masks: ClassVar[tuple[type, ...]] = (ExplicitMask,)

    def __init__(self, max_words: int) -> None:
        super().__init__()
        self.width = max_words

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        visible = view.attention_mask.mask(view.lengths, view.inputs.shape[1])
        count = max(1, int(visible.sum(-1).max())) if visible.numel() else 1
        # Visible positions first, each group in reading order: a stable sort of two values.
        order = torch.sort((~visible).byte(), dim=-1, stable=True).indices[..., :count]
        ids = view.inputs[:, None, :].expand(visible.shape).gather(-1, order)
        return HiddenStates(values=ids.masked_fill(~visible.gather(-1, order), NO_TOKEN))


class LinearWindow(Backbone):
    """Linear window (log-bilinear LM): h_i = Σ_{j=1..n} W_j e(s_{i-j}), a matrix per distance.

    Mnih and Hinton 2007. Tokens before the first are zero. Inputs (B, T), values (B, T, W).
    """

    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask,)

    def __init__(self, embedding: nn.Embedding, size: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = embedding
        self.size = size
        self.width = embedding.embedding_dim
        self.context = NgramContext(size)
        self.dropout = nn.Dropout(dropout)
        # Block j of the matrix is W for the token n - j positions back: oldest first.
        self.mix = Linear(size * self.width, self.width, bias=False)

    def initial_state(self, rows: int) -> TensorState:
        return self.context.initial_state(rows)

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        context = self.context(view, state)
        ids = context.values
        vectors: Tensor = self.embedding(ids.clamp(min=0)) * (ids != NO_TOKEN)[..., None]
        values = self.mix(self.dropout(vectors).flatten(-2))
        return HiddenStates(values=values, state=context.state)


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
        self.mix = Linear(size * self.width, count * self.width, bias=False)
        self.shares = nn.Parameter(torch.zeros(count))

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        context = token_context(view, state, keep=self.size - 1)
        vectors = self.dropout(_pad_to_window(self.embedding(context.ids), context, self.size))
        windows = vectors.unfold(1, self.size, 1).transpose(2, 3).flatten(2)
        values = self.mix(windows).unflatten(-1, (self.count, self.width))
        return _weighted_choices(values, self.shares, context)

    def capture_internals(self, view: View) -> dict[str, Capture]:
        return {
            "window shares": Capture(
                values=F.softmax(self.shares, dim=0),
                axes=("choice",),
                caption="P(window), the mixture weight of each window before the token is seen.",
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
        self.turn = Linear(self.width, size * self.width, bias=False)
        orders = torch.tensor(list(permutations(range(size))))
        self.orders = nn.Parameter(torch.zeros(len(orders)))
        # (n!, n, n): permutation, role of a token, actual position, the oldest first.
        self.register_buffer("picks", F.one_hot(size - 1 - orders, size).float(), persistent=False)

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        context = token_context(view, state, keep=self.size - 1)
        vectors = self.dropout(_pad_to_window(self.embedding(context.ids), context, self.size))
        transformed = self.turn(vectors).unflatten(-1, (self.size, self.width))
        windows = transformed.unfold(1, self.size, 1)  # (B, T, n roles, W, n positions)
        values = torch.einsum("btjws,pjs->btpw", windows, self.picks)
        return _weighted_choices(values, self.orders, context)

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


def _weighted_choices(values: Tensor, logits: Tensor, context: TokenContext) -> HiddenStates:
    """Hidden states (B, T, K, W) of K choices, weighted by softmax(logits) at every position."""
    log_weights = F.log_softmax(logits, dim=0).expand(*values.shape[:2], -1)
    return HiddenStates(values=values, log_weights=log_weights, state=context.state)


def _pad_to_window(vectors: Tensor, context: TokenContext, size: int) -> Tensor:
    """(B, n - 1 + T, W): zeros before the first token, so that every position has a window of n."""
    return F.pad(vectors, (0, 0, size - 1 - context.past_length, 0))
