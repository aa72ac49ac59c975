"""Sparse attention against transformers' Longformer and GPT-Neo with the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lmlab.layers.attention import DotProductScores
from lmlab.layers.sequence_mixer import LayerContext
from lmlab.layers.sparse_attention import SparseAttention
from lmlab.layers.sparse_pattern import SparsePattern

WIDTH, HEADS, ROWS, TIME = 8, 2, 2, 80
HEAD = WIDTH // HEADS
POSITIONS = torch.arange(TIME)[None]


def attention(pattern: str, scores: DotProductScores | None = None) -> SparseAttention:
    torch.manual_seed(0)
    parsed = SparsePattern.parse(pattern)
    assert parsed is not None and parsed.is_worthwhile(TIME)
    mixer = SparseAttention(WIDTH, HEADS, pattern=parsed, scores=scores).double()
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return mixer


def texts() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, TIME, WIDTH, generator=generator).double()


def test_transformers_longformer() -> None:
    """Longformer's window is the positions on both sides, and its global maps are others."""
    longformer = pytest.importorskip("transformers.models.longformer.modeling_longformer")
    configuration = longformer.LongformerConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_hidden_layers=1,
        attention_window=[8],
        attention_probs_dropout_prob=0.0,
    )
    theirs = longformer.LongformerSelfAttention(configuration, 0).double().eval()
    ours = attention("window:5+global:2")
    parts = zip(("query", "key", "value"), ours.qkv_projection.weight.chunk(3), strict=True)
    biases = ours.qkv_projection.bias.chunk(3)
    with torch.no_grad():
        for (name, weight), bias in zip(parts, biases, strict=True):
            for suffix in ("", "_global"):
                getattr(theirs, name + suffix).weight.copy_(weight)
                getattr(theirs, name + suffix).bias.copy_(bias)
        ours.output.weight.copy_(torch.eye(WIDTH))
        ours.output.bias.zero_()
    # 0 for local attention, positive for global, negative for padding.
    mask = torch.zeros(ROWS, TIME).double()
    mask[:, :2] = 10_000.0
    mask[1, 30:] = -10_000.0
    lengths = torch.tensor([TIME, 30])
    padded = LayerContext(
        mask=(lengths[:, None] > POSITIONS)[:, None, None].expand(-1, 1, TIME, -1),
        query_positions=POSITIONS,
        key_positions=POSITIONS,
    )
    with torch.no_grad():
        expected = theirs(
            texts(),
            attention_mask=mask,
            is_index_masked=mask < 0,
            is_index_global_attn=mask > 0,
            is_global_attn=True,
        )[0]
        output = ours(texts(), padded)
    # transformers computes the softmax in single precision.
    torch.testing.assert_close(output[0], expected[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(output[1, :30], expected[1, :30], atol=1e-5, rtol=0)


def test_transformers_gpt_neo() -> None:
    """GPT-Neo's local attention: causal, a window, unscaled scores."""
    neo = pytest.importorskip("transformers.models.gpt_neo.modeling_gpt_neo")
    configuration = neo.GPTNeoConfig(
        hidden_size=WIDTH,
        num_heads=HEADS,
        num_layers=1,
        attention_types=[[["local"], 1]],
        window_size=6,
        max_position_embeddings=128,
        attention_dropout=0.0,
    )
    theirs = neo.GPTNeoSelfAttention(configuration, "local", 0).double().eval()
    ours = attention("window:6", scores=DotProductScores(HEAD, scaled=False))
    context = LayerContext(causal=True, query_positions=POSITIONS, key_positions=POSITIONS)
    names = ("q_proj", "k_proj", "v_proj")
    with torch.no_grad():
        ours.qkv_projection.bias.zero_()
        for name, weight in zip(names, ours.qkv_projection.weight.chunk(3), strict=True):
            getattr(theirs, name).weight.copy_(weight)
        theirs.out_proj.weight.copy_(ours.output.weight)
        theirs.out_proj.bias.copy_(ours.output.bias)
        expected = theirs(texts())[0]
        output = ours(texts(), context)
    # transformers computes these scores in single precision.
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
