"""Sentence pairs (NSP and SOP): splitting, negatives, labels and loss."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.sentence_pairs import (
    NextSentencePrediction,
    RepackedBatch,
    SentenceOrderPrediction,
)

SIZE = 5000
VOCABULARY = Vocabulary(size=SIZE)
PAD, START, END = 0, 2, 3


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbered(*lengths: int) -> Batch:
    """Texts of which every token occurs once: row r has 10 + 100 r, 11 + 100 r …"""
    rows = [[START, *(10 + 100 * r + i for i in range(n)), END] for r, n in enumerate(lengths)]
    return Batch.collate(rows, pad=PAD)


def split_pair(packed: RepackedBatch, row: int) -> tuple[list[int], list[int], int]:
    """Both segments without special tokens, and the label."""
    length = int(packed.batch.lengths[row])
    tokens = packed.batch.tokens[row].tolist()
    assert tokens[0] == START
    assert tokens[length - 1] == END
    assert set(tokens[length:]) <= {PAD}
    cut = tokens.index(END)
    segments = packed.segments[row].tolist()
    assert segments == [0] * (cut + 1) + [1] * (length - cut - 1) + [0] * (len(tokens) - length)
    return tokens[1:cut], tokens[cut + 1 : length - 1], int(packed.labels[row])


def test_next_sentence_negatives_come_from_other_texts():
    batch = numbered(9, 7, 8, 9)
    texts = [row[1:n].tolist() for row, n in zip(batch.tokens, batch.lengths - 1, strict=True)]
    pairs, seen = NextSentencePrediction(4, VOCABULARY), {0: 0, 1: 0}
    for seed in range(100):
        packed = pairs.pack(batch, generator=seeded(seed))
        for row, text in enumerate(texts):
            first, second, label = split_pair(packed, row)
            assert first and second
            assert first == text[: len(first)]
            seen[label] += 1
            if label == 0:
                assert first + second == text
                continue
            (other,) = {(token - 10) // 100 for token in second}
            assert other != row
            assert second == texts[other][-len(second) :]
            # As long as the true continuation, if the other text is longer than that.
            wanted = len(text) - len(first)
            assert len(second) == min(wanted, len(texts[other]) - 1)
    assert min(seen.values()) > 100


def test_sentence_order_negatives_are_swapped_segments():
    batch = numbered(9, 2, 6)
    texts = [row[1:n].tolist() for row, n in zip(batch.tokens, batch.lengths - 1, strict=True)]
    pairs, seen = SentenceOrderPrediction(4, VOCABULARY), {0: 0, 1: 0}
    for seed in range(60):
        packed = pairs.pack(batch, generator=seeded(seed))
        for row, text in enumerate(texts):
            first, second, label = split_pair(packed, row)
            assert first and second
            assert (first + second if label == 0 else second + first) == text
            seen[label] += 1
    assert min(seen.values()) > 50


@pytest.mark.parametrize("kind", [NextSentencePrediction, SentenceOrderPrediction])
def test_half_the_pairs_are_negative_and_cuts_are_uniform(kind):
    """4,000 texts of six words: labels by the binomial error, five cuts by chi-square."""
    batch = Batch.collate([[START, *range(10, 16), END]] * 4000, pad=PAD)
    packed = kind(4, VOCABULARY).pack(batch, generator=seeded())
    negative_count = int((packed.labels == 1).sum())
    assert abs(negative_count - 2000) < 5 * math.sqrt(4000 / 4)
    positive = packed.labels == 0
    first = (packed.batch.tokens[positive] == END).int().argmax(1) - 1
    counts = np.bincount(first.numpy(), minlength=6)[1:]
    expected = counts.sum() / 5
    half = torch.tensor(((counts - expected) ** 2 / expected).sum() / 2, dtype=torch.float64)
    assert torch.special.gammaincc(torch.tensor(2.0, dtype=torch.float64), half) > 1e-6


def test_negative_segments_are_uniform_over_other_texts():
    """Row 0 of five: each of the other four in a quarter of its negative pairs."""
    batch, pairs, others = numbered(6, 6, 6, 6, 6), NextSentencePrediction(4, VOCABULARY), []
    for seed in range(600):
        packed = pairs.pack(batch, generator=seeded(seed))
        if packed.labels[0] == 1:
            others.append((split_pair(packed, 0)[1][0] - 10) // 100)
    counts = np.bincount(others, minlength=5)
    assert counts[0] == 0
    error = math.sqrt(len(others) * 3 / 16)
    assert np.abs(counts[1:] - len(others) / 4).max() < 5 * error


def test_texts_too_short_to_split_have_no_label():
    batch = Batch.collate([[START, 9, END], [START, END], [START, 8, 7, END]], pad=PAD)
    packed = NextSentencePrediction(4, VOCABULARY).pack(batch, generator=seeded())
    assert packed.labels.tolist() == [NO_TARGET, NO_TARGET, 0]  # no other text to take from
    assert packed.batch.tokens[0].tolist() == [START, 9, END, PAD, PAD]
    assert packed.batch.lengths.tolist() == [3, 2, 5]
    assert packed.segments[:2].sum() == 0


def test_truncated_text_gets_no_end_token():
    batch = Batch.collate([[START, 7, 8, 9]], pad=PAD)
    packed = SentenceOrderPrediction(4, VOCABULARY).pack(batch, generator=seeded())
    assert int(packed.batch.lengths[0]) == 5
    assert packed.batch.tokens[0].tolist().count(END) == 1
    assert packed.batch.tokens[0, -1] != END


def test_repacked_positions_point_to_the_source_tokens():
    batch = numbered(9, 7, 8, 9)
    packed = NextSentencePrediction(4, VOCABULARY).pack(batch, generator=seeded(1))
    inside = packed.positions >= 0
    assert torch.equal(
        batch.tokens[packed.rows, packed.positions.clamp(min=0)][inside],
        packed.batch.tokens[inside],
    )
    # All but the separators and the padding.
    assert int(inside.sum()) == int((packed.batch.lengths - 1).sum())


def test_pair_loss_is_weighted_by_masked_tokens():
    """Row 0 predicts two tokens, row 1 one, and row 2 has no label.

    With one unit, U = 1 and V = (0, 1) the logits are (0, tanh h): for h = 0 and label 0
    -log ½, for h = 10 and label 1 log(1 + e^-tanh 10).
    """
    pairs = SentenceOrderPrediction(1, VOCABULARY)
    with torch.no_grad():
        for parameter in pairs.parameters():
            parameter.zero_()
        pairs.pool.weight.fill_(1.0)
        pairs.classify.weight[1, 0] = 1.0
    targets = torch.tensor([[NO_TARGET, 5, 6], [NO_TARGET, 5, NO_TARGET], [NO_TARGET, 5, 6]])
    view = View(
        inputs=torch.zeros(3, 3).long(),
        lengths=torch.tensor([3, 3, 3]),
        attention_mask=FullMask(),
        targets=targets,
        labels=torch.tensor([0, 1, NO_TARGET]),
    )
    hidden = torch.tensor([0.0, 10.0, 3.0])[:, None, None].expand(3, 3, 1)
    loss = pairs.loss(view, hidden)
    second = math.log(1 + math.exp(-math.tanh(10)))
    assert float(loss.total.detach()) == pytest.approx(2 * math.log(2) + second)
    assert float(loss.count) == 3


@pytest.mark.parametrize(
    ("name", "part"), [("bert", "next sentence"), ("albert", "sentence order")]
)
def test_static_masking_does_not_depend_on_the_split(name: str, part: str):
    """With static masking the masked tokens are the same wherever the text is split."""
    module = system_module(name)
    system = module.build(replace(module.SIZES["tiny"], duplicates=1), VOCABULARY)
    batch = numbered(30, 30, 30, 30)
    masked_states: dict[int, set[bool]] = {}
    for seed in range(20):
        view = system.objective.view(batch, generator=seeded(seed))
        assert view.labels is not None and view.segments is not None
        clean = torch.where(view.targets == NO_TARGET, view.inputs, view.targets)
        pairs = zip(clean.flatten().tolist(), view.targets.flatten().tolist(), strict=True)
        for token, target in pairs:
            if token >= 10:
                masked_states.setdefault(token, set()).add(target != NO_TARGET)
    assert len(masked_states) == 120
    assert all(len(ways) == 1 for ways in masked_states.values())
    loss, _ = system.loss(batch, generator=seeded())
    assert set(loss.parts) == {"masked", part}
    assert loss.count == loss.parts["masked"].count


def test_pairs_need_a_separator_and_one_more_position():
    module = system_module("bert")
    system = module.build(module.SIZES["tiny"], VOCABULARY)
    system.check_length(63)  # with one special token more 64, which is the length
    with pytest.raises(UserError, match="at most 63"):
        system.check_length(64)
    with pytest.raises(UserError, match="an end token between the segments"):
        module.build(module.SIZES["tiny"], Vocabulary(size=30, end=None))
    with pytest.raises(UserError, match="got segments=1"):
        module.Config(segments=1)
    alone = module.build(replace(module.SIZES["tiny"], pairs="none"), VOCABULARY)
    alone.check_length(64)
    assert alone.objective.view(numbered(5, 6), generator=seeded()).labels is None
