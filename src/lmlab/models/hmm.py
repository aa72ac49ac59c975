"""Hidden Markov model: forward algorithm, block-structured emission, infilling and EM."""

from __future__ import annotations

from torch import Generator, Tensor

from lmlab.backbones.hmm_forward import HMMForward
from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.distribution import Categorical
from lmlab.core.parts import Predictions
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.hmm_emission import HMMEmission
from lmlab.layers.hmm_parameters import (
    HMMParameters,
    TabularHMMParameters,
)
from lmlab.layers.hmm_posterior import (
    expected_counts,
    fill_masked_tokens,
    state_posterior,
)
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.objectives.next_token import NextToken

HMM_RECIPES = {
    # Chiu and Rush's (2020) model, scaled to about an hour on one core.
    "ptb": {
        "states": 1024,
        "blocks": 8,
        "width": 256,
        "state_dropout": 0.5,
        "dropout": 0.1,
        "learning_rate": 3e-3,
        "schedule": "cosine",
        "warmup_steps": 100,
        "weight_decay": 0.01,
        "tokens_per_batch": 2048,
        "epochs": 40,
    }
}


class HiddenMarkovModel(AutoregressiveLM):
    """Hidden Markov model: forward filter and blocked emission, tables computed once per batch."""

    backbone: HMMForward
    fill_score_kind = "exact"

    def __init__(
        self, markov: HMMParameters, vocabulary: Vocabulary, *, fitting: str = "gradient"
    ) -> None:
        super().__init__(
            vocabulary=vocabulary,
            backbone=HMMForward(markov),
            emission=HMMEmission(markov),
            objective=NextToken(),
            fitting=fitting,
        )

    @property
    def markov(self) -> HMMParameters:
        return self.backbone.markov

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions:
        with self.markov.shared():
            return super().target_log_probs(view, state)

    def fill(
        self, batch: Batch, masked: Tensor, *, generator: Generator | None = None
    ) -> Categorical:
        """Posterior states given all other positions (forward-backward), then their emission."""
        return fill_masked_tokens(self.markov.tables(), batch, masked)

    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        posterior = Capture(
            values=state_posterior(self.markov.tables(), batch),
            axes=("batch", "time", "state"),
            caption="P(state | the whole text) at each token, by forward-backward.",
            sums_to_one="state",
        )
        return {**super().capture_internals(batch), "state posterior": posterior}


class TabularHiddenMarkovModel(HiddenMarkovModel):
    """HMM with free probability tables, fitted by EM (Baum-Welch: Baum et al. 1970)."""

    def __init__(self, markov: TabularHMMParameters, vocabulary: Vocabulary) -> None:
        super().__init__(markov, vocabulary, fitting="em")
        self.free = markov

    def expect(self, batch: Batch) -> dict[str, Tensor]:
        return expected_counts(self.markov, lambda: self.log_prob(batch).totals)

    def maximise(self, counts: dict[str, Tensor]) -> None:
        self.free.set_from_counts(counts)
