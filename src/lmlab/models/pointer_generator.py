"""Pointer-generator: the decoder generates a word or copies one from the source."""

from __future__ import annotations

from lmlab.backbones.backbone_interfaces import CopyHiddenStates, CopyState
from lmlab.core.distribution import Categorical
from lmlab.core.parts import HiddenStates, Predictions, prediction_mask
from lmlab.core.view import View
from lmlab.models.causal_lm import DecodingState
from lmlab.models.seq2seq import EncoderDecoderLM


class PointerGenerator(EncoderDecoderLM):
    """Pointer-generator: p(k) = λ p_generate(k) + p_copy(k); the backbone's pointer copies."""

    def predict(self, view: View, hidden: HiddenStates) -> Predictions:
        assert isinstance(hidden, CopyHiddenStates)
        places = prediction_mask(view)
        assert view.prediction_view.targets is not None
        targets = view.prediction_view.targets[places]
        made = self.emission.log_prob(hidden.values[places], targets)
        log_probs = hidden.copy_distribution.log_prob(made, places, targets)
        return Predictions(log_probs=log_probs, target_mask=places, state=hidden.state)

    def peek(self, state: DecodingState) -> Categorical:
        memory: CopyState = state.memory  # type: ignore[assignment]
        return Categorical(
            memory.copy_distribution.log_probs(self.emission.log_probs(state.values))
        )
