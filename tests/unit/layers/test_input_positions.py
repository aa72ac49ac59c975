"""Positions in input vectors, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from lmlab.core.batch import Batch
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.input_embedding import InputEmbedding
from lmlab.layers.positional_embedding import (
    ConcatenatedPositionalEmbedding,
    LearnedPositionalEmbedding,
    PairPositionalEmbedding,
    SinusoidalPositionalEmbedding,
)
from lmlab.zoo import albert, bert, bert_wwm, roberta, unilm


def test_sinusoidal_by_hand():
    """Width 4: frequencies 1 and 10000^(-1/2) = 0.01; sines first, then cosines."""
    zeros, places = torch.zeros(1, 3, 4), torch.arange(3)[None]
    found = SinusoidalPositionalEmbedding(4)(zeros, places)[0, 2]
    expected = [math.sin(2), math.sin(0.02), math.cos(2), math.cos(0.02)]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


def test_an_odd_width_has_one_sine_more():
    sinusoid_table = SinusoidalPositionalEmbedding(5).sinusoid_table(torch.tensor([[1]]))
    assert sinusoid_table.shape == (1, 1, 5)


def test_concatenated_stand_beside_the_vectors():
    vectors = torch.randn(2, 3, 4)
    found = ConcatenatedPositionalEmbedding(4)(vectors, torch.arange(3)[None])
    assert found.shape == (2, 3, 8)
    assert torch.equal(found[..., :4], vectors)


def test_segments_are_added_to_the_tokens_where_positions_stand_beside_them():
    """[e(s_t) + g(c_t); sin(t ω), cos(t ω)], and segment 0 where none are told."""
    tokens, segments = nn.Embedding(7, 4), nn.Embedding(2, 4)
    embedding = InputEmbedding(
        tokens, positions=ConcatenatedPositionalEmbedding(4), segments=segments
    )
    inputs, kinds, places = torch.tensor([[5, 6, 1]]), torch.tensor([[0, 1, 1]]), torch.arange(3)
    sinusoid_table = SinusoidalPositionalEmbedding(4).sinusoid_table(places[None])
    expected = torch.cat([tokens(inputs) + segments(kinds), sinusoid_table], -1)
    assert torch.equal(embedding(inputs, places[None], kinds), expected)
    untold = torch.cat([tokens(inputs) + segments.weight[0], sinusoid_table], -1)
    assert torch.equal(embedding(inputs, places[None]), untold)


@pytest.mark.parametrize("family", [bert, roberta, albert, bert_wwm, unilm])
def test_systems_with_segments_take_concatenated_positions(family):
    """They build, score a text, and feel the order of its words."""
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


def test_learned_and_pairs_add_what_stands_in_their_tables():
    vectors, places = torch.randn(2, 3, 4), torch.tensor([[2, 0, 1], [1, 1, 0]])
    learned = LearnedPositionalEmbedding(5, 4)
    assert torch.equal(learned(vectors, places), vectors + learned.table.weight[places])
    pairs = PairPositionalEmbedding(5, 4)
    both = torch.stack([places, places.flip(1)], -1)
    expected = vectors + pairs.first.table.weight[places]
    expected = expected + pairs.second.table.weight[places.flip(1)]
    assert torch.equal(pairs(vectors, both), expected)
