"""FullSentences packing (RoBERTa): several texts in one input."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.view import NO_TARGET
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.sentence_pairs import FullSentences

TEXTS = [[2, 5, 6, 3], [2, 7, 3], [2, 8, 9, 10, 3], [2, 11, 3], [2, 12, 13, 14, 15, 3]]


def test_full_sentences_fill_each_input_greedily():
    """Eight positions: 4 and 2, then 5 and 2 (with another 5 it would be 12), then 6."""
    packed = FullSentences(length=8).pack(Batch.collate(TEXTS, pad=0))
    assert packed.batch.tokens.tolist() == [
        [2, 5, 6, 3, 7, 3, 0],
        [2, 8, 9, 10, 3, 11, 3],
        [2, 12, 13, 14, 15, 3, 0],
    ]
    assert packed.batch.lengths.tolist() == [6, 7, 6]
    assert packed.rows[0, :6].tolist() == [0, 0, 0, 0, 1, 1]
    assert packed.positions[0].tolist() == [0, 1, 2, 3, 1, 2, -1]


@pytest.mark.parametrize("length", [6, 7, 9, 14, 100])
def test_packing_keeps_every_text_within_the_length(length: int):
    packed = FullSentences(length=length).pack(Batch.collate(TEXTS, pad=0))
    lengths = packed.batch.lengths.tolist()
    assert max(lengths) <= length
    inputs = [row[1:n].tolist() for row, n in zip(packed.batch.tokens, lengths, strict=True)]
    assert [token for row in inputs for token in row] == [t for text in TEXTS for t in text[1:]]


def test_roberta_masks_packed_texts_like_single_ones():
    module, vocabulary = system_module("roberta"), Vocabulary(size=200)
    tiny = module.SIZES["tiny"]
    rows = [[2, *range(5 + 12 * r, 17 + 12 * r), 3] for r in range(10)]
    batch = Batch.collate(rows, pad=0)
    alone = module.build(tiny, vocabulary)
    packed = module.build(replace(tiny, full_sentences=True), vocabulary)
    single_view = alone.objective.view(batch, generator=torch.Generator().manual_seed(0))
    packed_view = packed.objective.view(batch, generator=torch.Generator().manual_seed(0))
    # 1 + 13 a text: four of them in 64 positions.
    assert packed_view.lengths.tolist() == [53, 53, 27]
    targets = [
        view.targets[view.targets != NO_TARGET].tolist() for view in (single_view, packed_view)
    ]
    assert targets[0] == targets[1] and len(targets[0]) > 5
    loss, _ = packed.loss(batch, generator=torch.Generator().manual_seed(0))
    assert loss.count == len(targets[0])


def test_full_sentences_refuse_next_sentence_pairs():
    with pytest.raises(UserError, match=r"does not apply to pairs=next"):
        system_module("bert").Config(full_sentences=True)
