"""RNN language model as a mixture over W learned initial states, summed out exactly.

    p(s) = Σ_w π_w p(s | start w)

The initial state of a sentence is one of W, latent, and the sum over them is exact: L_t =
logsumexp_w(log π_w + Σ_{u≤t} log p(s_u | s_<u, w)), and log p(s_t | s_<t) = L_t - L_{t-1}.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.attention_mask import CausalMask
from lmlab.core.batch import Batch
from lmlab.core.capture import UNIT_INTERVAL, Capture
from lmlab.core.errors import UserError
from lmlab.core.parts import (
    Backbone,
    CandidateLogits,
    Emission,
    HiddenStates,
    Objective,
    Predictions,
    prediction_mask,
)
from lmlab.core.sampled_loss import SampledLoss
from lmlab.core.state import State, TensorState
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.causal_lm import AutoregressiveLM, DecodingState

LOG_WEIGHTS = "log_weights"
"""The key of the posterior over initial states in a state, (rows, W)."""


@runtime_checkable
class InitialisableBackbone(Protocol):
    """A backbone whose initial state can be set."""

    def free_state_widths(self) -> dict[str, int]:
        """The tensors of a state that can be set, with their widths."""
        ...

    def state_from_free(self, free: Mapping[str, Tensor]) -> TensorState:
        """The state given by such tensors (rows, width)."""
        ...

    def capture_internals(self, view: View, state: State | None = None) -> dict[str, Capture]:
        """Internal activations, continuing from `state` if given."""
        ...


class InitialStates(nn.Module):
    """W learned initial states (a vector for every free state tensor) and their W logits."""

    INITIAL_STD = 0.5
    """Standard deviation of the initialisation, which must break the symmetry between states."""

    def __init__(self, count: int, widths: Mapping[str, int]) -> None:
        super().__init__()
        self.count = count
        # A single state needs no logit.
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
        """Free tensors (rows · W, width), the states of a row adjacent."""
        return {name: self.vectors[name.replace(".", "_")].repeat(rows, 1) for name in self._names}

    def log_weights(self, rows: int) -> Tensor:
        """(rows, W) log π."""
        if self.logits is None:
            first: Tensor = next(iter(self.vectors.values()))
            return first.new_zeros(rows, 1)
        return F.log_softmax(self.logits, 0).expand(rows, -1)


class StateMixtureLM(AutoregressiveLM):
    """Autoregressive model with `count` initial states, marginalised exactly.

    Its state holds the backbone's state from each of them, tensors (rows, W, …), and the log
    posterior "log_weights" (rows, W). Cost: W times that of the base model.
    """

    predicts_by_hidden_state = False
    count: int
    single_state_setting: ClassVar[str]
    """The setting that reduces the model to one initial state."""

    def set_sampled_loss(self, sampled_loss: SampledLoss) -> None:
        setting = "" if isinstance(self.emission, CandidateLogits) else " emission=softmax"
        raise UserError(
            "mixing initial states needs normalised probabilities, which a sampled loss does "
            f"not give; use --set {self.single_state_setting}{setting}, or remove --objective."
        )

    @abstractmethod
    def initial_states(self, view: View) -> tuple[TensorState, View]:
        """The initial states of the rows of a view, and the view of the remaining inputs."""

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions:
        if state is None:
            state, view = self.initial_states(view)
        hidden, log_weights = self._hidden_by_start(view, state)
        target_mask, log_probs = self._log_probs_by_start(view, hidden)
        before, after = _posteriors(log_weights, log_probs)
        marginal = torch.logsumexp(before + log_probs, dim=-1)[target_mask].to(hidden.values.dtype)
        assert isinstance(hidden.state, TensorState)
        next_state = self._rows_first(hidden.state, after[:, -1].to(hidden.values.dtype))
        return Predictions(log_probs=marginal, target_mask=target_mask, state=next_state)

    def _hidden_by_start(self, view: View, state: State) -> tuple[HiddenStates, Tensor]:
        """The backbone's hidden states for rows · W rows, and the initial log-weights."""
        assert isinstance(state, TensorState)
        repeated = View(
            inputs=view.inputs.repeat_interleave(self.count, 0),
            lengths=view.lengths.repeat_interleave(self.count, 0),
            attention_mask=view.attention_mask,
        )
        memory = {name: t.flatten(0, 1) for name, t in state.tensors.items() if name != LOG_WEIGHTS}
        return self.backbone(repeated, TensorState(memory)), state[LOG_WEIGHTS]

    def _log_probs_by_start(self, view: View, hidden: HiddenStates) -> tuple[Tensor, Tensor]:
        """The positions with a target, and (B, T, W) the log-probability there given each state."""
        target_mask, count = prediction_mask(view), self.count
        assert view.targets is not None
        values = hidden.values.unflatten(0, (-1, count)).transpose(1, 2)[target_mask]
        targets = view.targets[target_mask].repeat_interleave(count)
        log_probs = self.emission.log_prob(values.flatten(0, 1), targets).view(-1, count)
        # Double precision, so that sums over long texts retain the differences between states.
        dense = torch.zeros(*target_mask.shape, count, dtype=torch.double, device=log_probs.device)
        return target_mask, dense.masked_scatter(target_mask[..., None], log_probs.double())

    def _rows_first(self, memory: TensorState, log_weights: Tensor) -> TensorState:
        tensors = {name: t.unflatten(0, (-1, self.count)) for name, t in memory.tensors.items()}
        return TensorState({**tensors, LOG_WEIGHTS: log_weights})

    def advance(self, state: DecodingState, tokens: Tensor) -> DecodingState:
        """The state after one more token per row, with the posterior updated."""
        assert isinstance(state.memory, TensorState) and state.log_weights is not None
        repeated = tokens.repeat_interleave(self.count)
        log_probs = self.emission.log_prob(state.values.flatten(0, 1), repeated)
        joint = state.log_weights + log_probs.view(state.log_weights.shape)
        # A token impossible under every state (padding after the end) leaves the posterior
        # unchanged.
        possible = joint.isfinite().any(1, keepdim=True)
        weights = F.log_softmax(torch.where(possible, joint, state.log_weights), 1)
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
        """(B, T, W) log posterior over initial states after each position of a view."""
        hidden, log_weights = self._hidden_by_start(view, state)
        _, log_probs = self._log_probs_by_start(view, hidden)
        return _posteriors(log_weights, log_probs)[1].to(log_weights.dtype)

    def _most_probable_state(self, state: TensorState, log_weights: Tensor) -> TensorState:
        rows, best = torch.arange(len(log_weights)), log_weights.argmax(1)
        return TensorState({n: t[rows, best] for n, t in state.tensors.items() if n != LOG_WEIGHTS})


class InitialStateMixtureLM(StateMixtureLM):
    """Autoregressive model with W learned initial states; W = 1 just learns the state."""

    single_state_setting: ClassVar[str] = "starts=0"

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        backbone: Backbone,
        emission: Emission,
        objective: Objective,
        starts: int,
    ) -> None:
        super().__init__(
            vocabulary=vocabulary, backbone=backbone, emission=emission, objective=objective
        )
        self.starts = InitialStates(starts, self._initialisable().free_state_widths())
        self.count = starts

    def _initialisable(self) -> InitialisableBackbone:
        backbone: Any = self.backbone
        assert isinstance(backbone, InitialisableBackbone), (
            "the backbone's first state can be chosen"
        )
        return backbone

    def begin(self, rows: int) -> TensorState:
        """The state of `rows` sequences before their first input, for all initial states."""
        memory = self._initialisable().state_from_free(self.starts.free(rows))
        return self._rows_first(memory, self.starts.log_weights(rows))

    def initial_states(self, view: View) -> tuple[TensorState, View]:
        return self.begin(len(view.inputs)), view

    def start(self, rows: int, *, condition: Batch | None = None) -> DecodingState:
        memory = self.begin(rows)
        tokens = torch.full((rows,), self.vocabulary.bos, device=memory[LOG_WEIGHTS].device)
        return self._step(memory, tokens)

    @torch.no_grad()
    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        """The mixture weights, and each row's internals from its most probable initial state."""
        before, view = self.initial_states(self.objective.view(batch))
        log_posterior = self.posteriors(before, view)
        best_state = self._most_probable_state(before, log_posterior[:, -1])
        captures = {
            **self._initialisable().capture_internals(view, best_state),
            **self.emission.capture_internals(self.backbone(view, best_state)),
            **self.objective.capture_internals(self, batch),
        }
        captures["starts"] = Capture(
            values=self.starts.log_weights(1)[0].exp(),
            axes=("choice",),
            caption="P(initial state of the network), before any token is read.",
            sums_to_one="choice",
            titles={"choice": "initial state"},
        )
        captures["posterior over starts"] = initial_state_posterior_capture(log_posterior)
        return captures


def initial_state_posterior_capture(log_posterior: Tensor) -> Capture:
    """The posterior over initial states given the tokens up to each position."""
    return Capture(
        values=log_posterior.exp(),
        axes=("batch", "time", "choice"),
        caption="P(initial state | the tokens up to and including this one).",
        bounds=UNIT_INTERVAL,
        titles={"choice": "initial state"},
    )


def _posteriors(log_weights: Tensor, log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T, W) log posteriors over initial states before and after each position's token.

    `log_weights` (B, W): before the first token; `log_probs` (B, T, W): of the tokens.
    """
    first = log_weights.double()[:, None]
    joint = first + log_probs.cumsum(1)
    after = F.log_softmax(joint, -1)
    before = torch.cat([F.log_softmax(first, -1), after[:, :-1]], 1)
    return before, after
