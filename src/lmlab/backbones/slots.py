"""Soft window: n attention heads pick earlier tokens, independently or coupled by a chain CRF."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.backbones.latent_choice import LatentChoiceBackbone, TokenContext, token_context
from lmlab.backbones.latent_parents import ParentPrior, capture_prior
from lmlab.core.capture import Capture
from lmlab.core.parts import HiddenStates
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.inference import linear_chain
from lmlab.layers.matrix_product import Linear


class Slots(LatentChoiceBackbone):
    """N attention heads over earlier tokens in place of a fixed window, by mean field.

        h_i = Σ_m W_m E[e(s_{j_m})],  P(j_m = j) ∝ P_m(j | i) exp(u_m · e(s_j))

    Mean field: the choices are independent, and the window uses the expected vectors instead of a
    mixture over all S^N choices. One prior per slot. Inputs (B, T), values (B, T, W); N attentions
    over S visible tokens, and one normaliser per position.
    """

    def __init__(
        self, embedding: nn.Embedding, priors: Sequence[ParentPrior], *, dropout: float = 0.0
    ) -> None:
        super().__init__()
        assert len({prior.max_distance for prior in priors}) == 1, "all slots look back equally far"
        self.embedding = embedding
        self.priors = nn.ModuleList(priors)
        self.dropout = nn.Dropout(dropout)
        self.width = embedding.embedding_dim
        self.token_scores = Linear(self.width, len(priors), bias=False)
        # Column block m is W_m.
        self.mix = Linear(len(priors) * self.width, self.width, bias=False)

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        context, vectors = self._recall(view, state)
        weights = self.marginals(self._log_choices(context, vectors))
        slot_vectors = weights @ vectors[:, None]  # (B, N, T, W)
        values = self.mix(slot_vectors.transpose(1, 2).flatten(2))
        return HiddenStates(values=values, state=context.state)

    def marginals(self, log_choices: Tensor) -> Tensor:
        """(B, N, T, S) probability that slot m of a position holds each token, from log-weights."""
        return F.softmax(log_choices, dim=-1)

    def _recall(self, view: View, state: State | None) -> tuple[TokenContext, Tensor]:
        keep = self.priors[0].memory_length
        assert keep is None or isinstance(keep, int)
        context = token_context(view, state, keep=keep)
        return context, self.dropout(self.embedding(context.ids))

    def _log_choices(self, context: TokenContext, vectors: Tensor) -> Tensor:
        """(B, N, T, S) log P_m(j | i) + u_m · e(s_j), unnormalised."""
        past_length, time = context.past_length, context.time
        priors = torch.stack([prior(past_length, time, vectors) for prior in self.priors])
        return priors + self.token_scores(vectors).transpose(1, 2)[:, :, None]

    def capture_internals(self, view: View) -> dict[str, Capture]:
        context, vectors = self._recall(view, None)
        priors = [capture_prior(prior, view, vectors) for prior in self.priors]  # type: ignore
        return {
            "slot prior": Capture(
                values=torch.stack([prior.values for prior in priors]),
                axes=("slot", *priors[0].axes),
                caption="For each slot, the prior over the position that it attends to, before the "
                "tokens are seen: a line parallel to the diagonal is a fixed offset.",
                sums_to_one=priors[0].sums_to_one,
            ),
            "slot attention": Capture(
                values=self.marginals(self._log_choices(context, vectors)),
                axes=("batch", "slot", "time", "source"),
                caption="For each slot, which earlier token it holds when each token is predicted.",
                sums_to_one="source",
            ),
        }


class ChainedSlots(Slots):
    """`Slots` with a linear-chain CRF over choices: P ∝ Π_m φ_m(j_m) Π_m ψ(j_{m+1} - j_m).

    φ_m is the weight of slot m in `Slots`, and ψ a learned weight for the distance between the
    tokens of adjacent slots, clipped at `moves`. The marginals are exact by forward-backward, N S²
    per position; the window uses the expected vectors. With ψ = 1 it is `Slots`.
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        priors: Sequence[ParentPrior],
        *,
        moves: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(embedding, priors, dropout=dropout)
        # From `moves` positions back to `moves` positions ahead, 0 in the middle.
        self.log_moves = nn.Parameter(torch.zeros(2 * moves + 1))

    def log_transitions(self, count: int) -> Tensor:
        """(S, S) log ψ from each token to each."""
        position = torch.arange(count, device=self.log_moves.device)
        max_distance = len(self.log_moves) // 2
        offset = (position - position[:, None]).clamp(-max_distance, max_distance)
        return self.log_moves[offset + max_distance]

    def marginals(self, log_choices: Tensor) -> Tensor:
        _, slots, _, count = log_choices.shape
        moves = self.log_transitions(count).expand(slots - 1, count, count)
        return linear_chain.forward_backward(log_choices.transpose(1, 2), moves).transpose(1, 2)

    def capture_internals(self, view: View) -> dict[str, Capture]:
        captures = super().capture_internals(view)
        captures["slot moves"] = Capture(
            values=F.softmax(self.log_moves, dim=0),
            axes=("move",),
            caption="Weight of each offset from one slot's token to the next slot's: 0 is the same "
            "token, negative offsets are earlier tokens.",
            sums_to_one="move",
        )
        return captures
