"""Several learned initial states with learned weights, mixed exactly (003: W, "RNN-level mixture").

    p(s) = Σ_w π_w p(s | start w)

A sentence begins in one of W states, which one is latent, and the sum over them is taken exactly:
L_t = logsumexp_w(log π_w + Σ_{u≤t} log p(s_u | s_<u, w)), and log p(s_t | s_<t) = L_t - L_{t-1}.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.attention_mask import CausalMask
from lmlab.core.batch import Batch
from lmlab.core.capture import UNIT_INTERVAL, Capture
from lmlab.core.errors import UserError
from lmlab.core.parts import Backbone, CandidateLogits, HiddenStates, Predictions, prediction_mask
from lmlab.core.sampled_loss import SampledLoss
from lmlab.core.state import State, TensorState
from lmlab.core.view import View
from lmlab.models.causal_lm import (
    AutoregressiveLM,
    DecodingState,
)

LOG_WEIGHTS = "log_weights"
"""The name under which a state holds its posterior over the starts, (rows, W)."""


@runtime_checkable
class InitialisableBackbone(Protocol):
    """A backbone whose first state may be chosen."""

    def free_state_widths(self) -> dict[str, int]:
        """The tensors of a state that a start is free to choose, each with its width."""
        ...

    def state_from_free(self, free: Mapping[str, Tensor]) -> TensorState:
        """The state that such numbers (rows, width) begin."""
        ...

    def capture_internals(self, view: View, state: State | None = None) -> dict[str, Capture]:
        """Inner values worth a picture, going on from `state` where it is given."""
        ...


class InitialStates(nn.Module):
    """W learned starts, vectors for every free tensor of a state, and their W weights as logits."""

    INITIAL_STD = 0.5
    """Standard deviation of the first values: starts must differ, or they would stay the same."""

    def __init__(self, count: int, widths: Mapping[str, int]) -> None:
        super().__init__()
        self.count = count
        # A single start has all the weight, and no logit to learn.
        self.logits = nn.Parameter(torch.zeros(count)) if count > 1 else None
        # A parameter's name has no dots.
        self.vectors = nn.ParameterDict(
            {
                name.replace(".", "_"): nn.Parameter(self.INITIAL_STD * torch.randn(count, width))
                for name, width in widths.items()
            }
        )
        self._names = tuple(widths)

    def free(self, rows: int) -> dict[str, Tensor]:
        """Free numbers (rows · W, width), the starts of a row beside each other."""
        return {name: self.vectors[name.replace(".", "_")].repeat(rows, 1) for name in self._names}

    def log_weights(self, rows: int) -> Tensor:
        """(rows, W) log π."""
        if self.logits is None:
            return next(iter(self.vectors.values())).new_zeros(rows, 1)
        return F.log_softmax(self.logits, 0).expand(rows, -1)


class StateMixtureLM(AutoregressiveLM):
    """A left-to-right system that begins in one of `count` states; which one is summed out.

    Its state is the backbone's from every one of them, tensors (rows, W, …), with the log
    posterior "log_weights" (rows, W). Cost: W times the plain system's.
    """

    count: int
    single_state_setting: ClassVar[str]
    """The setting that leaves it one state to begin in."""

    def set_sampled_loss(self, contrast: SampledLoss) -> None:
        more = "" if isinstance(self.emission, CandidateLogits) else " emission=softmax"
        raise UserError(
            "what it begins in is summed out by probabilities, of which a contrast has none: --set "
            f"{self.single_state_setting}{more}, or leave --objective out."
        )

    def initial_states(self, view: View) -> tuple[TensorState, View]:
        """The states that the rows of a view begin in, and the view of what follows them."""
        raise TypeError(f"{type(self).__name__} does not define begun")

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions:
        if state is None:
            state, view = self.initial_states(view)
        hidden, log_weights = self._hidden_by_start(view, state)
        places, each = self._log_probs_by_start(view, hidden)
        before, after = _posteriors(log_weights, each)
        mixed = torch.logsumexp(before + each, dim=-1)[places].to(hidden.values.dtype)
        assert isinstance(hidden.state, TensorState)
        following = self._rows_first(hidden.state, after[:, -1].to(hidden.values.dtype))
        return Predictions(log_probs=mixed, target_mask=places, state=following)

    def _hidden_by_start(self, view: View, state: State) -> tuple[HiddenStates, Tensor]:
        """The backbone's hidden states for rows · W rows, and the log-weights they begin with."""
        assert isinstance(state, TensorState)
        wide = View(
            inputs=view.inputs.repeat_interleave(self.count, 0),
            lengths=view.lengths.repeat_interleave(self.count, 0),
            attention_mask=view.attention_mask,
        )
        memory = {name: t.flatten(0, 1) for name, t in state.tensors.items() if name != LOG_WEIGHTS}
        return self.backbone(wide, TensorState(memory)), state[LOG_WEIGHTS]

    def _log_probs_by_start(self, view: View, hidden: HiddenStates) -> tuple[Tensor, Tensor]:
        """The places with a target, and (B, T, W) the log-probability there given each start."""
        places, count = prediction_mask(view), self.count
        assert view.targets is not None
        values = hidden.values.unflatten(0, (-1, count)).transpose(1, 2)[places]
        targets = view.targets[places].repeat_interleave(count)
        found = self.emission.log_prob(values.flatten(0, 1), targets).view(-1, count)
        # In double, so that sums over long text keep what the starts differ by.
        each = torch.zeros(*places.shape, count, dtype=torch.double, device=found.device)
        return places, each.masked_scatter(places[..., None], found.double())

    def _rows_first(self, memory: TensorState, log_weights: Tensor) -> TensorState:
        tensors = {name: t.unflatten(0, (-1, self.count)) for name, t in memory.tensors.items()}
        return TensorState({**tensors, LOG_WEIGHTS: log_weights})

    def scores(
        self, hidden: HiddenStates, places: Tensor, own: Tensor, shared: Tensor | None = None
    ) -> Tensor:
        raise TypeError("several starts are mixed by probabilities, and scores are none yet")

    def advance(self, state: DecodingState, tokens: Tensor) -> DecodingState:
        """The state after one more token in each row: what it says of the starts is taken in."""
        assert isinstance(state.memory, TensorState) and state.log_weights is not None
        repeated = tokens.repeat_interleave(self.count)
        each = self.emission.log_prob(state.values.flatten(0, 1), repeated)
        joint = state.log_weights + each.view(state.log_weights.shape)
        # A token that no start can predict (padding after the end) says nothing of them.
        said = joint.isfinite().any(1, keepdim=True)
        weights = F.log_softmax(torch.where(said, joint, state.log_weights), 1)
        return self._step(TensorState({**state.memory.tensors, LOG_WEIGHTS: weights}), tokens)

    def _step(self, memory: State, tokens: Tensor) -> DecodingState:
        view = View(
            inputs=tokens[:, None], lengths=torch.ones_like(tokens), attention_mask=CausalMask()
        )
        hidden, log_weights = self._hidden_by_start(view, memory)
        assert isinstance(hidden.state, TensorState)
        values = hidden.values[:, -1].unflatten(0, (-1, self.count))
        return DecodingState(self._rows_first(hidden.state, log_weights), values, log_weights)

    @torch.no_grad()
    def posteriors(self, state: TensorState, view: View) -> Tensor:
        """(B, T, W) log posterior over the starts after each place of a view that has a state."""
        hidden, log_weights = self._hidden_by_start(view, state)
        _, each = self._log_probs_by_start(view, hidden)
        return _posteriors(log_weights, each)[1].to(log_weights.dtype)

    def _most_probable_state(self, state: TensorState, log_weights: Tensor) -> TensorState:
        rows, best = torch.arange(len(log_weights)), log_weights.argmax(1)
        return TensorState({n: t[rows, best] for n, t in state.tensors.items() if n != LOG_WEIGHTS})


class InitialStateMixtureLM(StateMixtureLM):
    """A system that begins in one of W learned states; W = 1 just learns the start."""

    single_state_setting: ClassVar[str] = "starts=0"

    def __init__(self, *, starts: int, backbone: Backbone, **parts: Any) -> None:
        super().__init__(backbone=backbone, **parts)
        self.starts = InitialStates(starts, self._startable().free_state_widths())
        self.count = starts

    def _startable(self) -> InitialisableBackbone:
        backbone: Any = self.backbone
        assert isinstance(backbone, InitialisableBackbone), (
            "the backbone's first state can be chosen"
        )
        return backbone

    def begin(self, rows: int) -> TensorState:
        """The state of `rows` sequences before their first input, in all starts."""
        memory = self._startable().state_from_free(self.starts.free(rows))
        return self._rows_first(memory, self.starts.log_weights(rows))

    def initial_states(self, view: View) -> tuple[TensorState, View]:
        return self.begin(len(view.inputs)), view

    def start(self, rows: int, *, condition: Batch | None = None) -> DecodingState:
        memory = self.begin(rows)
        opening = torch.full((rows,), self.vocabulary.bos, device=memory[LOG_WEIGHTS].device)
        return self._step(memory, opening)

    @torch.no_grad()
    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        """The weights of the starts, and for each row what its likeliest start leads to."""
        before, view = self.initial_states(self.objective.view(batch))
        after = self.posteriors(before, view)
        chosen = self._most_probable_state(before, after[:, -1])
        captures = {
            **self._startable().capture_internals(view, chosen),
            **self.emission.capture_internals(self.backbone(view, chosen)),
            **self.objective.capture_internals(self, batch),
        }
        captures["starts"] = Capture(
            values=self.starts.log_weights(1)[0].exp(),
            axes=("choice",),
            caption="P(initial state of the network), before any token is read.",
            sums_to_one="choice",
            titles={"choice": "initial state"},
        )
        captures["posterior over starts"] = initial_state_posterior_capture(after)
        return captures


def initial_state_posterior_capture(log_posterior: Tensor) -> Capture:
    """What the tokens up to each place say of where a row began."""
    return Capture(
        values=log_posterior.exp(),
        axes=("batch", "time", "choice"),
        caption="P(initial state | the tokens up to and including this one).",
        bounds=UNIT_INTERVAL,
        titles={"choice": "initial state"},
    )


def _posteriors(log_weights: Tensor, each: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T, W) log posteriors over the starts before and after each place's token.

    `log_weights` (B, W) before the first, `each` (B, T, W) the tokens' log-probabilities.
    """
    first = log_weights.double()[:, None]
    joint = first + each.cumsum(1)
    after = F.log_softmax(joint, -1)
    before = torch.cat([F.log_softmax(first, -1), after[:, :-1]], 1)
    return before, after
