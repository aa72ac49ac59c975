"""The parts a system is assembled from: backbone × emission × objective.

Parts declare what they give and take, so that a mismatch is an error that names what would fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.loss import Loss
from lmlab.core.protocols import LogProbs
from lmlab.core.score_kind import ScoreKind
from lmlab.core.state import State
from lmlab.core.view import NO_TARGET, View


@dataclass(frozen=True, kw_only=True, eq=False)
class HiddenStates:
    """What a backbone computes for every place of a view."""

    values: Tensor
    """(B, T, W) vectors; (B, T, M, W) components, M weighted vectors a place, mixed after the
    emission; (B, S, W) sources, vectors that all places share as their components; (B, T, K)
    states, log-weights over the states of an emission; (B, T, n) contexts, token ids to count."""
    log_weights: Tensor | None = None
    """(B, T, M) log-weights of the components, (B, T, S) of the sources; -inf where a place may
    not look."""
    state: State | None = None
    """After the last input; None where the backbone carries nothing on."""
    memory_outputs: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)
    """What the memories between layers found, by the layer that each stands after."""


class Backbone(nn.Module):
    """Tokens to hidden states."""

    output_kind: ClassVar[str] = "vectors"
    """vectors, components, sources, states, contexts or nothing: see `HiddenStates.values`."""
    supported_masks: ClassVar[tuple[type, ...]] = ()
    """The kinds of Visibility that it can keep to."""
    width: int
    """W of the hidden states it gives."""
    cpu_tokens_at_once: ClassVar[int | None] = None
    """Tokens that a CPU reads fastest at once, where more of them fall out of its cache."""

    def initial_state(self, rows: int) -> State:
        """The memory of `rows` sequences before their first input."""
        raise TypeError(f"{type(self).__name__} carries no state from step to step")

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        """Hidden states for every place of the view, going on from `state` where it is given."""
        raise TypeError(f"{type(self).__name__} does not define forward")

    def hidden_at(self, view: View, places: Tensor) -> Tensor:
        """(N, …) hidden states at the true entries of `places` (B, T), in reading order.

        The clear version; a fast one leaves out what no such place needs.
        """
        found: HiddenStates = self(view)
        return found.values[places]

    def capture_internals(self, view: View) -> dict[str, Capture]:
        """Inner values worth a picture, by name: gates, priors, attention."""
        return {}


class Emission(nn.Module):
    """A hidden state to a distribution over the vocabulary."""

    input_kinds: ClassVar[frozenset[str]] = frozenset({"vectors", "components", "sources"})
    """Which of a backbone's `yields` it can read."""

    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(N,) log-probability of N targets given N hidden states (N, W)."""
        return self.log_probs(hidden).gather(-1, targets[:, None]).squeeze(-1)

    def log_probs(self, hidden: Tensor) -> Tensor:
        """(…, V) the whole distribution; -inf at tokens that are never predicted."""
        raise TypeError(f"{type(self).__name__} does not define log_probs")

    def log_prob_by_index(self, hidden: Tensor, which: Tensor, targets: Tensor) -> Tensor:
        """(N,) log-probability of N targets, the n-th given the hidden state which[n] of (U, W).

        The clear version; a fast one normalises each hidden state once.
        """
        return self.log_prob(hidden[which], targets)

    def log_prob_and_mean(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(N,) log-probabilities of the targets, and (N,) the mean over all tokens that can come.

        What label smoothing takes. The clear version, of N · V numbers.
        """
        every = self.log_probs(hidden)
        possible = every > -torch.inf
        mean = every.masked_fill(~possible, 0).sum(-1) / possible.sum(-1)
        return every.gather(-1, targets[:, None]).squeeze(-1), mean

    def log_prob_by_source(self, sources: Tensor, targets: Tensor) -> Tensor:
        """(B, T, S) log-probability of each target (B, T) given each source (B, S, W).

        The clear version, of cost T · S · V; a fast one normalises each source once.
        """
        (rows, time), count = targets.shape, sources.shape[1]
        hidden = sources[:, None].expand(rows, time, count, -1).flatten(0, 2)
        repeated = targets[..., None].expand(rows, time, count).flatten()
        return self.log_prob(hidden, repeated).view(rows, time, count)

    def capture_internals(self, hidden: HiddenStates) -> dict[str, Capture]:
        """Inner values worth a picture, by name: use of mixture states, scales."""
        return {}


@runtime_checkable
class CandidateLogits(Protocol):
    """An emission that normalises scores of tokens, each of which can be had alone."""

    def scores(self, hidden: Tensor, own: Tensor, shared: Tensor | None = None) -> Tensor:
        """(N, C + K) scores before they are normalised, given N hidden states (N, W).

        Of the tokens `own` (N, C), others for each hidden state, and then of `shared` (K,), the
        same for all. Cost (C + K) · N · W, whatever the vocabulary.
        """
        ...

    def initialise_logits(self, log_probs: Tensor) -> None:
        """Let the scores (V,) start there, before anything is known of a hidden state.

        Where there are no biases nothing is done.
        """
        ...


class Network(Protocol):
    """What an objective may ask of the network it trains."""

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions:
        """Log-probabilities of a view's targets."""
        ...

    def hidden(self, view: View, state: State | None = None) -> HiddenStates:
        """Hidden states of a view, for an objective that asks more than one thing of them."""
        ...

    def predict(self, view: View, hidden: HiddenStates) -> Predictions:
        """Log-probabilities of a view's targets, given its hidden states."""
        ...

    def scores(
        self, hidden: HiddenStates, places: Tensor, own: Tensor, shared: Tensor | None = None
    ) -> Tensor:
        """Scores of a few tokens at the N true entries of `places`: see
        `CandidateLogits.scores`."""
        ...

    def initialise_logits(self, log_probs: Tensor) -> None:
        """Let the scores of all tokens start there: see `CandidateLogits.initialise_logits`."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """Log-probabilities at the N places of a view that have a target, in reading order."""

    log_probs: Tensor
    """(N,)"""
    target_mask: Tensor
    """(B, T) bool, true at those N places."""
    state: State | None = None

    def to_dense(self) -> Tensor:
        """(B, T) the log-probabilities back at their places, 0 elsewhere."""
        spread = torch.zeros(self.target_mask.shape, dtype=self.log_probs.dtype)
        return spread.to(self.log_probs.device).masked_scatter(self.target_mask, self.log_probs)


class Objective(nn.Module):
    """What is shown, what is predicted, what is lost: a pure function from a clean batch to a View.

    An objective is a module because it may own networks (ELECTRA's generator, a VAE's encoder).
    """

    kind: ClassVar[ScoreKind] = "exact"
    """What its log_prob is."""
    loss_is_comparable: ClassVar[bool] = True
    """Whether its loss for each prediction can be held against minus its log_prob: else a gap
    between training and held-out losses tells nothing."""
    needs_mixed_lengths: ClassVar[bool] = False
    """Whether a batch must hold texts of all lengths: where it is told from others whose lengths
    are their own, one of texts of like length teaches that this length is the data's."""

    def check_parts(self, backbone: Backbone, emission: Emission) -> None:
        """A UserError where such a network can't be trained by it; most train any."""
        return

    def check_sampled_loss(self) -> None:
        """A UserError where its loss takes more than the log-probabilities of its targets, which a
        contrast stands for."""
        return

    def begin_step(self, step: int) -> None:
        """Told before each step of training how many came before it: what is annealed needs it."""
        return

    def setup_data(
        self, network: Network, tokens: NDArray[np.generic], offsets: NDArray[np.int64]
    ) -> None:
        """Shown the training split before training: see `System.setup_data`."""
        return

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        """What the network sees of a clean batch, and what it is asked."""
        raise TypeError(f"{type(self).__name__} does not define view")

    def loss(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        """Minus the weighted log-probability of the view's targets, as total and count."""
        view = self.view(batch, generator=generator)
        predictions = network.target_log_probs(view, state)
        return weighted_cross_entropy(view, predictions), predictions.state

    def log_prob(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        """The distribution's own log-probability, which need not be what the loss maximises."""
        raise TypeError(f"{type(self).__name__} defines no log-probability")

    def capture_internals(self, network: Network, batch: Batch) -> dict[str, Capture]:
        """Inner values worth a picture of the networks that it owns."""
        return {}


def weighted_cross_entropy(view: View, predictions: Predictions) -> Loss:
    """Minus the log-probabilities of a view's targets under its weights, and how many they are."""
    lost = -predictions.log_probs
    if view.prediction_view.weights is not None:
        lost = lost * view.prediction_view.weights[predictions.target_mask]
    return Loss(lost.sum(), torch.tensor(float(lost.numel()), device=lost.device))


def prediction_mask(view: View) -> Tensor:
    """(B, T) bool: the places where something is predicted, the decoder's where there is one."""
    assert view.prediction_view.targets is not None, "this view has no targets"
    return view.prediction_view.targets != NO_TARGET
