"""Encoder-decoder: tied layers, concatenated positions, sources of different lengths."""

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
    "default": {},
    "tied": {"tied_encoder_decoder": True},
    "tied, pre-norm": {"tied_encoder_decoder": True, "pre_norm": True},
    "concatenated": {"positions": "concatenated"},
    "learned": {"positions": "learned"},
    "buckets": {"positions": "buckets"},
    "shaw": {"positions": "shaw"},
    "rotary": {"positions": "rotary"},
    "tied, shared layers": {"tied_encoder_decoder": True, "shared_layers": True},
}
EACH_OPTION = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def build(**options):
    torch.manual_seed(3)
    settings = {"width": 16, "layers": 2, "heads": 2, "length": 16, **options}
    system = transformer.build(transformer.Config(**settings), VOCABULARY).eval()
    for parameter in system.parameters():
        # Far from the initial weights, so that a wrong mask or position shows.
        torch.nn.init.normal_(parameter, std=0.3)
    return system


def pairs(rows: list[int]) -> Batch:
    condition = Batch.collate([SOURCES[row] for row in rows], pad=0)
    return Batch.collate([TEXTS[row] for row in rows], pad=0, condition=condition)


@EACH_OPTION
def test_scores_do_not_depend_on_the_batch(options: dict):
    system = build(**options)
    with torch.no_grad():
        together = system.log_prob(pairs([0, 1, 2])).totals
        backwards = system.log_prob(pairs([2, 1, 0])).totals.flip(0)
        alone = torch.cat([system.log_prob(pairs([row])).totals for row in range(3)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(backwards, alone, atol=1e-5, rtol=0)
    assert alone.std() > 0.1


@EACH_OPTION
def test_kv_cache_equals_full_forward_with_padded_sources(options: dict):
    """Three rows at once, each with its own source; finished rows get arbitrary input."""
    system, batch = build(**options), pairs([0, 1, 2])
    with torch.no_grad():
        expected = system.log_prob(batch).per_token
        state = system.start(3, condition=batch.condition)
        for position in range(1, batch.tokens.shape[1]):
            tokens, unfinished = batch.tokens[:, position], position < batch.lengths
            log_prob = system.peek(state).log_prob(tokens)
            torch.testing.assert_close(
                log_prob[unfinished], expected[unfinished, position - 1], atol=1e-5, rtol=0
            )
            state = system.advance(state, tokens)


@EACH_OPTION
def test_every_source_token_is_attended_and_padding_is_not(options: dict):
    system, batch = build(**options), pairs([0, 1, 2])
    with torch.no_grad():
        before = system.log_prob(batch).totals
        for position in range(batch.condition.tokens.shape[1]):
            tokens = batch.condition.tokens.clone()
            tokens[:, position] = torch.where(tokens[:, position] == 8, 9, 8)
            source = Batch(
                tokens=tokens, lengths=batch.condition.lengths, rows=batch.condition.rows
            )
            changed = Batch(
                tokens=batch.tokens, lengths=batch.lengths, rows=batch.rows, condition=source
            )
            differs = system.log_prob(changed).totals != before
            assert torch.equal(differs, position < batch.condition.lengths)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_tied_layers_share_all_but_cross_attention(pre_norm: bool):
    """Each layer shares the encoder's self-attention, feed-forward layer and two norms."""
    untied, shared = (
        build(tied_encoder_decoder=shared, pre_norm=pre_norm) for shared in (False, True)
    )
    width, inner, layers = 16, 64, 2
    attention = 4 * (width * width + width)
    units = 2 * width * inner + inner + width
    saved = layers * (attention + units + 2 * 2 * width)
    assert untied.parameter_count - shared.parameter_count == saved
    for encoder_block, decoder_block in zip(
        shared.backbone.encoder.stack.blocks, shared.backbone.decoder.stack.blocks, strict=True
    ):
        assert decoder_block.mixer is encoder_block.mixer
        assert decoder_block.cross_attention is not encoder_block.mixer


def test_tied_layers_get_gradients_from_both_sides():
    """The gradient of a tied matrix is the sum of the encoder's and the decoder's."""
    shared = build(tied_encoder_decoder=True)
    untied = build()
    state = {name: tensor.clone() for name, tensor in shared.state_dict().items()}
    untied.load_state_dict(state)
    batch = pairs([0, 1, 2])
    for system in (shared, untied):
        loss, _ = system.loss(batch)
        loss.total.backward()
    tied_gradient = shared.backbone.encoder.stack.blocks[0].mixer.qkv_projection.weight.grad
    side_gradients = [
        side.stack.blocks[0].mixer.qkv_projection.weight.grad
        for side in (untied.backbone.encoder, untied.backbone.decoder)
    ]
    assert all(gradient.abs().max() > 1e-3 for gradient in side_gradients)
    torch.testing.assert_close(tied_gradient, sum(side_gradients), atol=1e-4, rtol=1e-4)


def test_concatenated_positions_by_hand():
    """[√W e(s_t); sin(t ω), cos(t ω)] through one matrix; ω_i = 10000^(-2i/W)."""
    system = build(positions="concatenated", width=4, heads=1)
    embedding = system.backbone.encoder.embedding
    tokens = torch.tensor([[5, 9, 7]])
    with torch.no_grad():
        embedded = embedding(tokens, torch.arange(3)[None])[0]
        for position in range(3):
            sinusoid_table = [position, position / 100]
            sines = [math.sin(angle) for angle in sinusoid_table] + [
                math.cos(angle) for angle in sinusoid_table
            ]
            vector = torch.cat(
                [2 * embedding.tokens.weight[tokens[0, position]], torch.tensor(sines)]
            )
            expected = embedding.projection.weight @ vector + embedding.projection.bias
            torch.testing.assert_close(embedded[position], expected, atol=1e-6, rtol=0)
