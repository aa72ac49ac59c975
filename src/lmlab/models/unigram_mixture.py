"""Mixture of unigrams: tokens independent of their context."""

from __future__ import annotations

from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.parts import prediction_mask
from lmlab.emissions.unigram_mixture import UnigramMixture
from lmlab.models.causal_lm import AutoregressiveLM


class UnigramMixtureLM(AutoregressiveLM):
    """Mixture of unigrams, fitted by EM."""

    emission: UnigramMixture

    def expect(self, batch: Batch) -> dict[str, Tensor]:
        view = self.objective.view(batch)
        assert view.targets is not None
        return {"counts": self.emission.expected_counts(view.targets[prediction_mask(view)])}

    def maximise(self, counts: dict[str, Tensor]) -> None:
        self.emission.set_from_counts(counts["counts"])
