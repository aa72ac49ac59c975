"""Latent-state n-grams: state posterior of the last one or two tokens, then a transition."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.attention_mask import CausalMask
from lmlab.core.capture import Capture
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.state import State, TensorState
from lmlab.core.view import View
from lmlab.core.vocabulary import NO_TOKEN
from lmlab.emissions.mixture import MixtureStates
from lmlab.layers.state_transition import StateTransition

WORTH_SHARING = 256
"""Number of tokens in a batch from which on each distinct one is computed once."""


class TokenPosterior(nn.Module):
    """State posterior P(z | s) ∝ P(z) P(s | z), with P(s | z) the emission's and P(z) learned.

    Tokens that are never predicted, such as the start token, have no P(s | z): they share one
    learned distribution. Tokens (N,) to log-probabilities (N, K).
    """

    def __init__(self, states: MixtureStates) -> None:
        super().__init__()
        self.states = states
        self.prior = nn.Parameter(torch.zeros(states.count))
        self.unpredictable_logits = nn.Parameter(torch.zeros(states.count))

    def forward(self, tokens: Tensor) -> Tensor:
        unseen = self.states.never_predicted[tokens].isinf()
        any_token = (self.states.never_predicted == 0).nonzero()[0, 0]
        # Substitute any token that can be predicted, so that no gradient is infinite.
        likelihood = self.states.log_prob(torch.where(unseen, any_token, tokens))
        return torch.log_softmax(
            torch.where(unseen[:, None], self.unpredictable_logits, self.prior + likelihood), dim=-1
        )


class LocalStates(Backbone):
    """State prediction from the last token, then a transition.

        P(z_{i+1} | s_i) = Σ_z P(z_{i+1} | z_i = z)_{s_i} P(z_i = z | s_i)

    The transition module decides whether it depends on the token. The states are those of the
    emission, `WeightedStates`. Inputs (B, T), values (B, T, K) log-weights; cost K² for each
    distinct token of the batch, and the emission table once.
    """

    output_kind: ClassVar[str] = "states"
    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask,)

    def __init__(self, posterior: TokenPosterior, transition: StateTransition) -> None:
        super().__init__()
        self.posterior = posterior
        self.transition = transition
        self.width = posterior.states.count

    def initial_state(self, rows: int) -> TensorState:
        return TensorState({"nothing": torch.zeros(rows, 0)})

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        _, following = self._by_token(view.inputs)
        return HiddenStates(values=following, state=state or self.initial_state(len(view.inputs)))

    def _by_token(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, K) log P(z | s) of each token's own state, and of the next state."""
        distinct, inverse = _distinct(tokens)
        posterior = self.posterior(distinct)
        following = self.transition(posterior, distinct)
        return F.embedding(inverse, posterior), F.embedding(inverse, following)

    def capture_internals(self, view: View) -> dict[str, Capture]:
        log_posterior, _ = self._by_token(view.inputs)
        last_token = view.inputs[0, int(view.lengths[0]) - 1]
        return {
            "state posterior": Capture(
                values=log_posterior.exp(),
                axes=("batch", "source", "state"),
                caption="P(state | token) for each input token.",
                sums_to_one="state",
            ),
            "state prior": Capture(
                values=torch.softmax(self.posterior.prior, dim=0),
                axes=("state",),
                caption="P(state), before any token is seen.",
                sums_to_one="state",
            ),
            "transitions": Capture(
                values=self.transition.table(last_token),
                axes=("state", "next state"),
                caption="P(next state | state); where it depends on the token, after the last one "
                "of the first sentence.",
                sums_to_one="next state",
            ),
        }


class TwoTokenStates(LocalStates):
    """State prediction from the last two tokens, as a product of experts.

        P(z_{i+2}) = Σ_z P(z_{i+2} | z)_{s_{i+1}} norm_z[P(z | s_{i+1}) P(z | s_i)]

    P(z | s_{i+1}) is the token's posterior and P(z | s_i) the prediction of `LocalStates` from the
    token before; their product includes P(z) twice. The first token has no predecessor. Inputs (B,
    T), values (B, T, K); cost K² per position.
    """

    def initial_state(self, rows: int) -> TensorState:
        return TensorState({"last": torch.full((rows, 1), NO_TOKEN)})

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        previous = self.initial_state(len(view.inputs)) if state is None else state
        assert isinstance(previous, TensorState)
        tokens = torch.cat([previous["last"].to(view.inputs.device), view.inputs], dim=1)
        joined = self._joined(tokens)
        predicted = self.transition(joined.flatten(0, 1), view.inputs.flatten())
        values = predicted.view(*view.inputs.shape, -1)
        return HiddenStates(values=values, state=TensorState({"last": tokens[:, -1:]}))

    def _joined(self, tokens: Tensor) -> Tensor:
        """(B, T, K) norm[P(z | s_{i+1}) P(z | s_i)] for T pairs among T + 1 tokens."""
        absent = (tokens[:, :-1] == NO_TOKEN)[..., None]
        log_posterior, following = self._by_token(tokens.clamp(min=0))
        expected = following[:, :-1].masked_fill(absent, 0.0)
        return torch.log_softmax(log_posterior[:, 1:] + expected, dim=-1)


def _distinct(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct tokens (N,), and the index of each position (B, T) into them."""
    if tokens.numel() < WORTH_SHARING:
        return tokens.flatten(), torch.arange(tokens.numel(), device=tokens.device).view_as(tokens)
    return torch.unique(tokens, return_inverse=True)
