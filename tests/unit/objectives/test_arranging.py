"""Several texts in one input: RoBERTa's full sentences."""

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


def test_as_many_texts_as_fit_stand_in_an_input():
    """Eight places: 4 and 2, then 5 and 2 (with another 5 it would be 12), then 6."""
    arranged = FullSentences(length=8).pack(Batch.collate(TEXTS, pad=0))
    assert arranged.batch.tokens.tolist() == [
        [2, 5, 6, 3, 7, 3, 0],
        [2, 8, 9, 10, 3, 11, 3],
        [2, 12, 13, 14, 15, 3, 0],
    ]
    assert arranged.batch.lengths.tolist() == [6, 7, 6]
    assert arranged.rows[0, :6].tolist() == [0, 0, 0, 0, 1, 1]
    assert arranged.positions[0].tolist() == [0, 1, 2, 3, 1, 2, -1]


@pytest.mark.parametrize("length", [6, 7, 9, 14, 100])
def test_no_text_is_cut_or_lost_and_no_input_too_long(length: int):
    arranged = FullSentences(length=length).pack(Batch.collate(TEXTS, pad=0))
    lengths = arranged.batch.lengths.tolist()
    assert max(lengths) <= length
    fed = [row[1:n].tolist() for row, n in zip(arranged.batch.tokens, lengths, strict=True)]
    assert [token for row in fed for token in row] == [t for text in TEXTS for t in text[1:]]


def test_roberta_hides_a_text_alike_alone_and_in_company():
    module, vocabulary = system_module("roberta"), Vocabulary(size=200)
    tiny = module.SIZES["tiny"]
    rows = [[2, *range(5 + 12 * r, 17 + 12 * r), 3] for r in range(10)]
    batch = Batch.collate(rows, pad=0)
    alone = module.build(tiny, vocabulary)
    packed = module.build(replace(tiny, full_sentences=True), vocabulary)
    one = alone.objective.view(batch, generator=torch.Generator().manual_seed(0))
    several = packed.objective.view(batch, generator=torch.Generator().manual_seed(0))
    # 1 + 13 a text: four of them in 64 places.
    assert several.lengths.tolist() == [53, 53, 27]
    asked = [view.targets[view.targets != NO_TARGET].tolist() for view in (one, several)]
    assert asked[0] == asked[1] and len(asked[0]) > 5
    loss, _ = packed.loss(batch, generator=torch.Generator().manual_seed(0))
    assert loss.count == len(asked[0])


def test_full_sentences_are_not_cut_in_two():
    with pytest.raises(UserError, match=r"does not apply to pairs=next"):
        system_module("bert").Config(full_sentences=True)
