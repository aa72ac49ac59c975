"""Encoder and decoder: sharing, concatenated positions, sources of different lengths."""

from __future__ import annotations

import math

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.vocabulary import Vocabulary
from lmlab.zoo import transformer

VOCABULARY = Vocabulary(size=12)
SOURCES = [[2, 5, 6, 7, 8, 9, 3], [2, 10, 3], [2, 11, 7, 6, 3]]
TEXTS = [[2, 6, 3], [2, 5, 6, 7, 10, 11, 3], [2, 9, 9, 8, 3]]
OPTIONS = {
    "as published": {},
    "shared": {"tied_encoder_decoder": True},
    "shared, norms first": {"tied_encoder_decoder": True, "pre_norm": True},
    "concatenated": {"positions": "concatenated"},
    "learned": {"positions": "learned"},
    "buckets": {"positions": "buckets"},
    "shaw": {"positions": "shaw"},
    "rotary": {"positions": "rotary"},
    "one layer for all": {"tied_encoder_decoder": True, "shared_layers": True},
}
EACH = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def build(**options):
    torch.manual_seed(3)
    settings = {"width": 16, "layers": 2, "heads": 2, "length": 16, **options}
    system = transformer.build(transformer.Config(**settings), VOCABULARY).eval()
    for parameter in system.parameters():
        # Far from the first weights, so that a wrong mask or position shows.
        torch.nn.init.normal_(parameter, std=0.3)
    return system


def pairs(rows: list[int]) -> Batch:
    condition = Batch.collate([SOURCES[row] for row in rows], pad=0)
    return Batch.collate([TEXTS[row] for row in rows], pad=0, condition=condition)


@EACH
def test_a_pair_scores_the_same_alone_and_in_company(options: dict):
    system = build(**options)
    with torch.no_grad():
        together = system.log_prob(pairs([0, 1, 2])).totals
        backwards = system.log_prob(pairs([2, 1, 0])).totals.flip(0)
        alone = torch.cat([system.log_prob(pairs([row])).totals for row in range(3)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(backwards, alone, atol=1e-5, rtol=0)
    assert alone.std() > 0.1


@EACH
def test_it_steps_as_it_scores_beside_sources_of_different_lengths(options: dict):
    """Three rows at once, each with its own source; those that have ended are fed anything."""
    system, batch = build(**options), pairs([0, 1, 2])
    with torch.no_grad():
        expected = system.log_prob(batch).per_token
        state = system.start(3, condition=batch.condition)
        for place in range(1, batch.tokens.shape[1]):
            tokens, going = batch.tokens[:, place], place < batch.lengths
            found = system.peek(state).log_prob(tokens)
            torch.testing.assert_close(found[going], expected[going, place - 1], atol=1e-5, rtol=0)
            state = system.advance(state, tokens)


@EACH
def test_every_token_of_a_source_is_looked_at_and_padding_is_not(options: dict):
    system, batch = build(**options), pairs([0, 1, 2])
    with torch.no_grad():
        before = system.log_prob(batch).totals
        for place in range(batch.condition.tokens.shape[1]):
            tokens = batch.condition.tokens.clone()
            tokens[:, place] = torch.where(tokens[:, place] == 8, 9, 8)
            source = Batch(
                tokens=tokens, lengths=batch.condition.lengths, rows=batch.condition.rows
            )
            changed = Batch(
                tokens=batch.tokens, lengths=batch.lengths, rows=batch.rows, condition=source
            )
            moved = system.log_prob(changed).totals != before
            assert torch.equal(moved, place < batch.condition.lengths)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_shared_layers_are_the_same_but_for_looking_at_the_source(pre_norm: bool):
    """Of each layer the encoder's attention, units and two norms serve both sides."""
    apart, shared = (
        build(tied_encoder_decoder=shared, pre_norm=pre_norm) for shared in (False, True)
    )
    width, inner, layers = 16, 64, 2
    attention = 4 * (width * width + width)
    units = 2 * width * inner + inner + width
    saved = layers * (attention + units + 2 * 2 * width)
    assert apart.parameter_count - shared.parameter_count == saved
    for read, write in zip(
        shared.backbone.encoder.stack.blocks, shared.backbone.decoder.stack.blocks, strict=True
    ):
        assert write.attention is read.attention
        assert write.cross_attention is not read.attention


def test_shared_layers_are_trained_by_both_sides():
    """The gradient of a shared matrix is the sum of those it would have on each side."""
    shared = build(tied_encoder_decoder=True)
    apart = build()
    state = {name: tensor.clone() for name, tensor in shared.state_dict().items()}
    apart.load_state_dict(state)
    batch = pairs([0, 1, 2])
    for system in (shared, apart):
        loss, _ = system.loss(batch)
        loss.total.backward()
    one = shared.backbone.encoder.stack.blocks[0].attention.qkv_projection.weight.grad
    two = [
        side.stack.blocks[0].attention.qkv_projection.weight.grad
        for side in (apart.backbone.encoder, apart.backbone.decoder)
    ]
    assert all(gradient.abs().max() > 1e-3 for gradient in two)
    torch.testing.assert_close(one, sum(two), atol=1e-4, rtol=1e-4)


def test_concatenated_positions_by_hand():
    """[√W e(s_t); sin(t ω), cos(t ω)] through one matrix, as 002 tells it; ω_i = 10000^(-2i/W)."""
    system = build(positions="concatenated", width=4, heads=1)
    embedding = system.backbone.encoder.embedding
    tokens = torch.tensor([[5, 9, 7]])
    with torch.no_grad():
        found = embedding(tokens, torch.arange(3)[None])[0]
        for place in range(3):
            sinusoid_table = [place, place / 100]
            sines = [math.sin(angle) for angle in sinusoid_table] + [
                math.cos(angle) for angle in sinusoid_table
            ]
            vector = torch.cat([2 * embedding.tokens.weight[tokens[0, place]], torch.tensor(sines)])
            expected = embedding.projection.weight @ vector + embedding.projection.bias
            torch.testing.assert_close(found[place], expected, atol=1e-6, rtol=0)
