"""Model component interfaces: backbone, emission (output layer), training objective, predictions.

Components declare their input and output kinds, so that an error can name what would fit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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
from lmlab.core.score import ScoreKind
from lmlab.core.state import State
from lmlab.core.view import NO_TARGET, View


@dataclass(frozen=True, kw_only=True, eq=False)
class HiddenStates:
    """Hidden states: the output of a backbone for every position of a view."""

    values: Tensor
    """(B, T, W) vectors; (B, T, M, W) components, M weighted vectors per position, mixed after the
    emission; (B, S, W) sources, vectors that all positions share as components; (B, T, K) states,
    log-weights over the states of an emission; (B, T, n) contexts, token ids to count."""
    log_weights: Tensor | None = None
    """(B, T, M) log-weights of the components, (B, T, S) of the sources; -inf where masked."""
    state: State | None = None
    """After the last input; None if the backbone is stateless."""
    memory_outputs: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)
    """Outputs of the memories between layers, by the layer that each follows."""


class Backbone(nn.Module, ABC):
    """Backbone network: tokens to hidden states."""

    output_kind: ClassVar[str] = "vectors"
    """vectors, components, sources, states, contexts or nothing: see `HiddenStates.values`."""
    supported_masks: ClassVar[tuple[type, ...]] = ()
    """The kinds of `AttentionMask` that it supports."""
    width: int
    """Width W of its hidden states."""
    max_positions: int | None = None
    """Maximum number of positions it encodes at once; None if there is no limit."""
    segment_length: int | None = None
    """Segment length of texts of any length, with `memory_length` carried between segments; None
    if texts are encoded whole."""
    memory_length: int | None = None
    """Positions before a segment (without segments: before each token) that hidden states can
    depend on; None if nothing is forgotten."""
    cpu_tokens_at_once: ClassVar[int | None] = None
    """Fastest number of tokens per pass on a CPU, if more of them fall out of its cache."""

    @abstractmethod
    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        """Hidden states for every position of the view, continuing from `state` if given."""

    def hidden_at(self, view: View, mask: Tensor) -> Tensor:
        """(N, …) hidden states at the true entries of `mask` (B, T), in row-major order.

        Reference implementation; a fast one skips what no such position needs.
        """
        hidden: HiddenStates = self(view)
        return hidden.values[mask]

    def capture_internals(self, view: View) -> dict[str, Capture]:
        """Internal values to plot, by name: gates, priors, attention."""
        return {}


@runtime_checkable
class InitialState(Protocol):
    """A backbone that carries a state from step to step, without a source or a latent."""

    def initial_state(self, rows: int) -> State:
        """The initial state of `rows` sequences."""


def initial_state(backbone: Backbone, rows: int) -> State:
    """The initial state of `rows` sequences, of a backbone that has one."""
    assert isinstance(backbone, InitialState), f"{type(backbone).__name__} has no initial state"
    return backbone.initial_state(rows)


class OutputLayer(nn.Module):
    """What hidden states are read by: an emission, or energies of tokens."""

    input_kinds: ClassVar[frozenset[str]] = frozenset({"vectors", "components", "sources"})
    """Which of a backbone's `output_kind`s it accepts."""

    def capture_internals(self, hidden: HiddenStates) -> dict[str, Capture]:
        """Internal values to plot, by name: use of mixture states, scales."""
        return {}


class Emission(OutputLayer, ABC):
    """Emission: a hidden state to a distribution over the vocabulary."""

    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(N,) log-probability of N targets given N hidden states (N, W)."""
        return self.log_probs(hidden).gather(-1, targets[:, None]).squeeze(-1)

    @abstractmethod
    def log_probs(self, hidden: Tensor) -> Tensor:
        """(…, V) the whole distribution; -inf at tokens that are never predicted."""

    def log_prob_by_index(self, hidden: Tensor, index: Tensor, targets: Tensor) -> Tensor:
        """(N,) log-probability of N targets, the n-th given the hidden state index[n] of (U, W).

        Reference implementation; a fast one normalises each hidden state once.
        """
        return self.log_prob(hidden[index], targets)

    def log_prob_and_mean(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(N,) log-probabilities of the targets, and (N,) their mean over all possible tokens.

        For label smoothing. Reference implementation, of N · V numbers.
        """
        log_probs = self.log_probs(hidden)
        possible = log_probs > -torch.inf
        mean = log_probs.masked_fill(~possible, 0).sum(-1) / possible.sum(-1)
        return log_probs.gather(-1, targets[:, None]).squeeze(-1), mean

    def log_prob_by_source(self, sources: Tensor, targets: Tensor) -> Tensor:
        """(B, T, S) log-probability of each target (B, T) given each source (B, S, W).

        Reference implementation, of cost T · S · V; a fast one normalises each source once.
        """
        (rows, time), count = targets.shape, sources.shape[1]
        hidden = sources[:, None].expand(rows, time, count, -1).flatten(0, 2)
        repeated = targets[..., None].expand(rows, time, count).flatten()
        return self.log_prob(hidden, repeated).view(rows, time, count)


@runtime_checkable
class CandidateLogits(Protocol):
    """An emission with token logits that can be computed for single tokens."""

    def scores(self, hidden: Tensor, candidates: Tensor, shared: Tensor | None = None) -> Tensor:
        """(N, C + K) unnormalised logits, given N hidden states (N, W).

        For the tokens `candidates` (N, C), different for each hidden state, then for `shared` (K,),
        the same for all. Cost (C + K) · N · W, independent of the vocabulary.
        """

    def initialise_logits(self, log_probs: Tensor) -> None:
        """Initialise the output biases to these logits (V,).

        Does nothing if there are no biases.
        """


class Network(Protocol):
    """Interface of the network that an objective trains."""

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions:
        """Log-probabilities of a view's targets."""

    def hidden(self, view: View, state: State | None = None) -> HiddenStates:
        """Hidden states of a view, for an objective that uses them more than once."""

    def predict(self, view: View, hidden: HiddenStates) -> Predictions:
        """Log-probabilities of a view's targets, given its hidden states."""

    def scores(
        self, hidden: HiddenStates, mask: Tensor, candidates: Tensor, shared: Tensor | None = None
    ) -> Tensor:
        """Logits of a few tokens at the N true entries of `mask`: `CandidateLogits.scores`."""

    def initialise_logits(self, log_probs: Tensor) -> None:
        """Initialise the output biases: see `CandidateLogits.initialise_logits`."""


@runtime_checkable
class EmissionNetwork(Network, Protocol):
    """A network whose emission an objective may use for more than log-probabilities of targets."""

    @property
    def emission(self) -> Emission: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """Log-probabilities at the N target positions of a view, in row-major order."""

    log_probs: Tensor
    """(N,)"""
    target_mask: Tensor
    """(B, T) bool, true at those N positions."""
    state: State | None = None

    def to_dense(self) -> Tensor:
        """(B, T) the log-probabilities at their positions, 0 elsewhere."""
        dense = torch.zeros(self.target_mask.shape, dtype=self.log_probs.dtype)
        return dense.to(self.log_probs.device).masked_scatter(self.target_mask, self.log_probs)


class TrainingObjective(nn.Module, ABC):
    """Training objective: a pure function from a clean batch to a View, and a loss.

    An objective is a module because it may own networks (ELECTRA's generator, a VAE's encoder).
    """

    kind: ClassVar[ScoreKind] = "exact"
    """The kind of score its log_prob is."""
    prediction_kind: ClassVar[str] = ""
    """From what its networks predict a token: prefix, masked text, or source and prefix. A network
    can be the teacher of another of its kind, as it can predict from the same views. Empty if it
    predicts in a way of its own."""
    loss_is_comparable: ClassVar[bool] = True
    """Whether its loss per prediction is comparable with minus its log_prob; if not, the gap
    between training and held-out losses means nothing."""
    needs_mixed_lengths: ClassVar[bool] = False
    """Whether batches must mix texts of all lengths: an objective that discriminates data from
    samples would otherwise learn the data's length in each batch."""
    extra_positions: int = 0
    """Positions of the backbone that its framing takes, besides one for each token after the first:
    one more if the whole text is encoded at once, two if it is also split by a separator."""

    def check_parts(self, backbone: Backbone, emission: OutputLayer) -> None:
        """Raise a UserError if such a network can't be trained by it; most train any."""

    def check_sampled_loss(self) -> None:
        """Raise a UserError if its loss needs more than log-probabilities of targets.

        A sampled loss replaces these alone.
        """

    def begin_step(self, step: int) -> None:
        """Called before each training step with the number of steps done, for annealing."""

    def setup_data(
        self, network: Network, tokens: NDArray[np.generic], offsets: NDArray[np.int64]
    ) -> None:
        """Called with the training split before training: see `System.setup_data`."""

    @abstractmethod
    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        """The network's inputs and targets for a clean batch."""

    def clean_view(self, batch: Batch) -> View | None:
        """The view of the text as it is, without corruption and targets, aligned with the batch.

        None if `view` is the only one: it corrupts nothing, or it corrupts a source.
        """
        return None

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

    def capture_internals(self, network: Network, batch: Batch) -> dict[str, Capture]:
        """Internal values to plot of the networks that it owns."""
        return {}


class Objective(TrainingObjective):
    """Objective: a training objective with a log-probability of its own."""

    @abstractmethod
    def log_prob(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        """The distribution's own log-probability, which need not be what the loss maximises."""


def weighted_cross_entropy(view: View, predictions: Predictions) -> Loss:
    """Weighted cross-entropy of a view's targets, and their number."""
    losses = -predictions.log_probs
    if view.prediction_view.weights is not None:
        losses = losses * view.prediction_view.weights[predictions.target_mask]
    return Loss(losses.sum(), torch.tensor(float(losses.numel()), device=losses.device))


def prediction_mask(view: View) -> Tensor:
    """(B, T) bool: the target positions; the decoder's if there is one."""
    assert view.prediction_view.targets is not None, "this view has no targets"
    return view.prediction_view.targets != NO_TARGET
