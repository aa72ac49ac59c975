"""Systems that may copy a word of their source instead of making one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from lmlab.core.distribution import Categorical
from lmlab.core.parts import Hidden, Predictions, target_places
from lmlab.core.state import State
from lmlab.core.system import SteppingState
from lmlab.core.view import View
from lmlab.core.writing import SequenceToSequence


class Mixture(Protocol):
    """What is made and what is copied, put together."""

    def log_prob(self, made: Tensor, places: Tensor, targets: Tensor) -> Tensor:
        """(N,) of N targets at the `places` (B, T), given the log-probability of making them."""
        ...

    def log_probs(self, made: Tensor) -> Tensor:
        """(B, V) at the last place, given the log-probabilities of making each token."""
        ...


class CopyingState(State, Protocol):
    """A state that knows what may be copied next."""

    @property
    def copies(self) -> Mixture: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class CopyingHidden(Hidden):
    """Hidden states, and what each place would copy."""

    copies: Mixture


class CopyingWriter(SequenceToSequence):
    """p(k) = λ p_made(k) + p_copied(k): the emission makes, the backbone says what is copied."""

    def predict(self, view: View, hidden: Hidden) -> Predictions:
        assert isinstance(hidden, CopyingHidden)
        places = target_places(view)
        assert view.asked.targets is not None
        targets = view.asked.targets[places]
        made = self.emission.log_prob(hidden.values[places], targets)
        log_probs = hidden.copies.log_prob(made, places, targets)
        return Predictions(log_probs=log_probs, places=places, state=hidden.state)

    def peek(self, state: SteppingState) -> Categorical:
        memory: CopyingState = state.memory  # type: ignore[assignment]
        return Categorical(memory.copies.log_probs(self.emission.log_probs(state.values)))
