"""TODO"""

from __future__ import annotations

from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.parts import target_places
from lmlab.emissions.unigram_mixture import MixtureTable
from lmlab.models.causal_lm import LeftToRight


class IndependentMixture(LeftToRight):
    """The mixture with the two steps of EM."""

    emission: MixtureTable

    def expect(self, batch: Batch) -> dict[str, Tensor]:
        view = self.objective.view(batch)
        assert view.targets is not None
        return {"counts": self.emission.expected_counts(view.targets[target_places(view)])}

    def maximise(self, counts: dict[str, Tensor]) -> None:
        self.emission.set_from_counts(counts["counts"])
