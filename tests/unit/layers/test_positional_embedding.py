"""Positional embeddings by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from lmlab.core.batch import Batch
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.input_embedding import (
    ConcatenatedPositionalEmbedding,
    InputEmbedding,
    LearnedPositionalEmbedding,
    PairPositionalEmbedding,
    SinusoidalPositionalEmbedding,
)
from lmlab.zoo import albert, bert, bert_wwm, roberta, unilm


def test_sinusoidal_by_hand():
    """Width 4: frequencies 1 and 10000^(-1/2) = 0.01; sines first, then cosines."""
    zeros, positions = torch.zeros(1, 3, 4), torch.arange(3)[None]
    embedded = SinusoidalPositionalEmbedding(4)(zeros, positions)[0, 2]
    expected = [math.sin(2), math.sin(0.02), math.cos(2), math.cos(0.02)]
    assert embedded.tolist() == pytest.approx(expected, abs=1e-6)


def test_sinusoidal_table_of_odd_width():
    sinusoid_table = SinusoidalPositionalEmbedding(5).sinusoid_table(torch.tensor([[1]]))
    assert sinusoid_table.shape == (1, 1, 5)


def test_concatenated_positions_are_appended_to_the_vectors():
    vectors = torch.randn(2, 3, 4)
    embedded = ConcatenatedPositionalEmbedding(4)(vectors, torch.arange(3)[None])
    assert embedded.shape == (2, 3, 8)
    assert torch.equal(embedded[..., :4], vectors)


def test_segments_are_added_before_positions_are_concatenated():
    """[e(s_t) + g(c_t); sin(t ω), cos(t ω)], and segment 0 where none are given."""
    tokens, segments = nn.Embedding(7, 4), nn.Embedding(2, 4)
    embedding = InputEmbedding(
        tokens, positions=ConcatenatedPositionalEmbedding(4), segments=segments
    )
    inputs, segment_ids, positions = (
        torch.tensor([[5, 6, 1]]),
        torch.tensor([[0, 1, 1]]),
        torch.arange(3),
    )
    sinusoid_table = SinusoidalPositionalEmbedding(4).sinusoid_table(positions[None])
    expected = torch.cat([tokens(inputs) + segments(segment_ids), sinusoid_table], -1)
    assert torch.equal(embedding(inputs, positions[None], segment_ids), expected)
    expected_without_segments = torch.cat([tokens(inputs) + segments.weight[0], sinusoid_table], -1)
    assert torch.equal(embedding(inputs, positions[None]), expected_without_segments)


@pytest.mark.parametrize("family", [bert, roberta, albert, bert_wwm, unilm])
def test_systems_with_segments_support_concatenated_positions(family):
    """They build, score a text, and depend on word order."""
    torch.manual_seed(0)
    config = replace(family.SIZES["tiny"], positions="concatenated", segments=2)
    system = family.build(config, Vocabulary(size=12)).eval()
    for parameter in system.parameters():
        nn.init.normal_(parameter, std=0.5)
    texts = Batch.collate([[2, 7, 5, 9, 6, 3], [2, 5, 7, 6, 9, 3]], pad=0)
    with torch.no_grad():
        total = system.log_prob(texts).per_token.sum(1)
    assert total.isfinite().all() and (total < 0).all()
    assert abs(float(total[0] - total[1])) > 1e-3


def test_learned_and_pair_positions_add_their_table_rows():
    vectors, positions = torch.randn(2, 3, 4), torch.tensor([[2, 0, 1], [1, 1, 0]])
    learned = LearnedPositionalEmbedding(5, 4)
    assert torch.equal(learned(vectors, positions), vectors + learned.table.weight[positions])
    pairs = PairPositionalEmbedding(5, 4)
    both = torch.stack([positions, positions.flip(1)], -1)
    expected = vectors + pairs.first.table.weight[positions]
    expected = expected + pairs.second.table.weight[positions.flip(1)]
    assert torch.equal(pairs(vectors, both), expected)
