"""`clean_view`: the text as it is, whatever the objective corrupts or predicts in training."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.assembly import ComposedSystem
from lmlab.core.batch import Batch
from lmlab.core.view import NO_TARGET
from lmlab.core.vocabulary import Vocabulary
from lmlab.training.system_building import build_tiny

BATCH = Batch.collate([[2, 7, 8, 9, 10, 3], [2, 11, 12, 3]], 0)

CORRUPTED = (
    *("bert", "roberta", "spanbert", "ernie", "unilm", "mpnet", "xlnet", "electra"),
    *("span-joint", "set-transformer", "star-transformer", "eae", "cbow"),
)
"""Systems whose objectives mask or replace tokens of the text that they encode."""
OWN_VIEW_ONLY = ("gpt", "lstm", "hmm", "transformer", "bart", "mass", "t5", "ebm", "glm")
"""Nothing is corrupted, or it is a source, from which the decoder restores the text."""


def objective_of(name: str):
    system = build_tiny(name, Vocabulary(size=40)).eval()
    assert isinstance(system, ComposedSystem)
    return system.objective


@pytest.mark.parametrize("name", CORRUPTED)
def test_clean_view_shows_the_text_and_predicts_nothing(name: str) -> None:
    objective = objective_of(name)
    view = objective.clean_view(BATCH)
    assert torch.equal(view.inputs, BATCH.tokens) and torch.equal(view.lengths, BATCH.lengths)
    assert view.decoder is None
    if name != "electra":  # whose discriminator's targets say that every token is the original
        assert view.targets is None or bool((view.targets == NO_TARGET).all())
    # The check would pass on anything if training did not hide or replace tokens.
    views = [objective.view(BATCH, generator=torch.Generator().manual_seed(n)) for n in range(20)]
    changed = [
        trained.inputs.shape != BATCH.tokens.shape or not torch.equal(trained.inputs, BATCH.tokens)
        for trained in views
    ]
    assert any(changed) or name in ("xlnet", "cbow")  # these hide a token by attention masks


@pytest.mark.parametrize("name", OWN_VIEW_ONLY)
def test_without_corruption_of_the_text_there_is_no_other_view(name: str) -> None:
    assert objective_of(name).clean_view(BATCH) is None
