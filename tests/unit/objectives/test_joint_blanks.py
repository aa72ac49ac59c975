"""Which places are hidden to be filled in together, and what is lost on them."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.joint_masking import JointMaskedLMObjective, UniformCountMasking
from lmlab.objectives.masking.token_masking import maskable_positions

VOCABULARY = Vocabulary(size=9)


def hidden(choice: UniformCountMasking, rows: int = 3000) -> list[list[int]]:
    """Numbers of the hidden tokens in texts of six, and now and then of one."""
    texts = [[2, 5, 6, 7, 8, 5, 6, 3], [2, 7, 3]] * (rows // 2)
    batch = Batch.collate(texts, pad=0)
    allowed = maskable_positions(batch, VOCABULARY)
    chosen = choice(batch, allowed, generator=torch.Generator().manual_seed(0))
    assert not (chosen & ~allowed).any()
    assert chosen[1::2, 1].all(), "of a text of one token that one is hidden"
    return [row.nonzero().flatten().tolist() for row in chosen[::2]]


@pytest.mark.parametrize(("most", "greatest"), [(1.0, 6), (0.5, 3), (0.01, 1)])
def test_every_number_of_blanks_is_as_likely(most, greatest):
    counts = Counter(len(places) for places in hidden(UniformCountMasking(max_mask_rate=most)))
    assert sorted(counts) == list(range(1, greatest + 1))
    draws, p = 1500, 1 / greatest
    for count in counts.values():
        assert abs(count - draws * p) <= 5 * (draws * p * (1 - p)) ** 0.5


def test_they_are_neighbours_or_any_places():
    def apart(places: list[int]) -> bool:
        return places[-1] - places[0] >= len(places)

    assert not any(apart(places) for places in hidden(UniformCountMasking(spans=1.0)))
    free = [places for places in hidden(UniformCountMasking(spans=0.0)) if len(places) == 2]
    # Of the 15 pairs of places 10 are not neighbours.
    share = sum(map(apart, free)) / len(free)
    assert share == pytest.approx(2 / 3, abs=5 * (2 / 9 / len(free)) ** 0.5)
    firsts = Counter(
        places[0] for places in hidden(UniformCountMasking(spans=1.0)) if len(places) == 5
    )
    assert sorted(firsts) == [1, 2], "a run of five begins at either of two places"


def test_all_that_is_hidden_is_masked_and_asked_together():
    batch = Batch.collate([[2, 5, 6, 7, 3], [2, 8, 3]], pad=0)
    objective = JointMaskedLMObjective(VOCABULARY, UniformCountMasking())
    view = objective.view(batch, generator=torch.Generator().manual_seed(1))
    asked = view.targets != -100
    assert torch.equal(view.inputs == VOCABULARY.mask, asked)
    assert torch.equal(view.targets[asked], batch.tokens[asked])
    module = system_module("span-joint")
    torch.manual_seed(0)
    system = module.build(module.SIZES["tiny"], VOCABULARY).eval()
    loss, _ = system.loss(batch, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = -system.joint_fill(batch, asked).log_prob(batch.tokens[asked]).sum()
    assert loss.total.item() == pytest.approx(expected.item(), abs=1e-5)
    assert loss.count.item() == asked.sum().item()


def test_a_vocabulary_without_a_mask_is_told():
    with pytest.raises(UserError, match="needs a mask token"):
        JointMaskedLMObjective(Vocabulary(size=9, mask=None), UniformCountMasking())
