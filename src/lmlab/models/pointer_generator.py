"""Systems that may copy a word of their source instead of making one."""

from __future__ import annotations

from lmlab.backbones.backbone_interfaces import CopyingHidden, CopyingState
from lmlab.core.distribution import Categorical
from lmlab.core.parts import Hidden, Predictions, target_places
from lmlab.core.view import View
from lmlab.models.causal_lm import SteppingState
from lmlab.models.seq2seq import SequenceToSequence


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
