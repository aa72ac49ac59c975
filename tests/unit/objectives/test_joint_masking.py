"""Joint masking: the sampled positions and the joint loss."""

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


def masked_positions(choice: UniformCountMasking, rows: int = 3000) -> list[list[int]]:
    """Masked positions in texts of six tokens; every other text has one token."""
    texts = [[2, 5, 6, 7, 8, 5, 6, 3], [2, 7, 3]] * (rows // 2)
    batch = Batch.collate(texts, pad=0)
    allowed = maskable_positions(batch, VOCABULARY)
    chosen = choice(batch, allowed, generator=torch.Generator().manual_seed(0))
    assert not (chosen & ~allowed).any()
    assert chosen[1::2, 1].all(), "the only token of a text is masked"
    return [row.nonzero().flatten().tolist() for row in chosen[::2]]


@pytest.mark.parametrize(("max_rate", "max_count"), [(1.0, 6), (0.5, 3), (0.01, 1)])
def test_mask_count_is_uniform(max_rate, max_count):
    counts = Counter(
        len(positions)
        for positions in masked_positions(UniformCountMasking(max_mask_rate=max_rate))
    )
    assert sorted(counts) == list(range(1, max_count + 1))
    draws, p = 1500, 1 / max_count
    for count in counts.values():
        assert abs(count - draws * p) <= 5 * (draws * p * (1 - p)) ** 0.5


def test_masks_are_contiguous_or_anywhere():
    def apart(positions: list[int]) -> bool:
        return positions[-1] - positions[0] >= len(positions)

    assert not any(
        apart(positions) for positions in masked_positions(UniformCountMasking(spans=1.0))
    )
    free = [
        positions
        for positions in masked_positions(UniformCountMasking(spans=0.0))
        if len(positions) == 2
    ]
    # Of the 15 pairs of positions 10 are not adjacent.
    share = sum(map(apart, free)) / len(free)
    assert share == pytest.approx(2 / 3, abs=5 * (2 / 9 / len(free)) ** 0.5)
    firsts = Counter(
        positions[0]
        for positions in masked_positions(UniformCountMasking(spans=1.0))
        if len(positions) == 5
    )
    assert sorted(firsts) == [1, 2], "a span of five starts at either of two positions"


def test_joint_loss_equals_joint_fill_of_all_masks():
    batch = Batch.collate([[2, 5, 6, 7, 3], [2, 8, 3]], pad=0)
    objective = JointMaskedLMObjective(VOCABULARY, UniformCountMasking())
    view = objective.view(batch, generator=torch.Generator().manual_seed(1))
    is_target = view.targets != -100
    assert torch.equal(view.inputs == VOCABULARY.mask, is_target)
    assert torch.equal(view.targets[is_target], batch.tokens[is_target])
    module = system_module("span-joint")
    torch.manual_seed(0)
    system = module.build(module.SIZES["tiny"], VOCABULARY).eval()
    loss, _ = system.loss(batch, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = -system.joint_fill(batch, is_target).log_prob(batch.tokens[is_target]).sum()
    assert loss.total.item() == pytest.approx(expected.item(), abs=1e-5)
    assert loss.count.item() == is_target.sum().item()


def test_vocabulary_without_mask_token_is_refused():
    with pytest.raises(UserError, match="needs a mask token"):
        JointMaskedLMObjective(Vocabulary(size=9, mask=None), UniformCountMasking())
