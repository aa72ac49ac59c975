"""Attention against torch's implementation and loops; options and KV cache."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import pytest
import torch
from torch import nn

from lmlab.core.batch import Batch
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.attention import CosineScores, DotProductScores, MultiHeadAttention
from lmlab.layers.kv_cache import KVCache
from lmlab.layers.relative_positions import (
    AlibiBias,
    RelativePositionEncoding,
    RotaryEmbedding,
    ShawPositions,
    T5RelativeBias,
    TransformerXLPositions,
    exact_bucket_count,
)
from lmlab.layers.sequence_mixer import LayerContext
from lmlab.zoo import gpt
from lmlab.zoo._transformer_config import PositionName

WIDTH, HEADS, TIME = 12, 3, 5


def make_context(
    mask: torch.Tensor | None = None, *, causal: bool = False, **options
) -> LayerContext:
    positions = torch.arange(TIME)[None]
    return LayerContext(
        mask=mask, causal=causal, query_positions=positions, key_positions=positions, **options
    )


def values(seed: int = 0) -> torch.Tensor:
    return torch.randn(2, TIME, WIDTH, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_few_queries_path_equals_standard_attention(masked, bias):
    """Without gradients and for few queries, another order of products gives the same."""
    torch.manual_seed(0)
    attention = MultiHeadAttention(WIDTH, HEADS, bias=bias).eval()
    for parameter in attention.parameters():
        nn.init.normal_(parameter)
    queries, source = torch.randn(2, 1, WIDTH), values()
    mask = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 1]]).bool()[:, None, None]
    context = LayerContext(
        mask=mask if masked else None,
        query_positions=torch.zeros(2, 1, dtype=torch.long),
        key_positions=torch.arange(TIME)[None],
        disabled_heads=frozenset({1}),
    )
    expected = attention(queries, context, source=source)
    with torch.no_grad():
        assert attention._has_few_queries(queries, source, context)
        output = attention(queries, context, source=source)
        assert not attention._has_few_queries(source, source, context)
    torch.testing.assert_close(output, expected.detach(), atol=1e-5, rtol=1e-5)


def same_as_torch(attention: MultiHeadAttention) -> nn.MultiheadAttention:
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(attention.qkv_projection.weight)
        theirs.in_proj_bias.copy_(attention.qkv_projection.bias)
        theirs.out_proj.weight.copy_(attention.output.weight)
        theirs.out_proj.bias.copy_(attention.output.bias)
    return theirs


@pytest.mark.parametrize("recorded", [False, True], ids=["fused", "unfused"])
@pytest.mark.parametrize("kind", ["all", "causal", "explicit", "source"])
def test_equals_torch_multihead_attention(kind: str, recorded: bool):
    torch.manual_seed(0)
    attention = MultiHeadAttention(WIDTH, HEADS)
    nn.init.normal_(attention.qkv_projection.bias)
    theirs, x = same_as_torch(attention), values()
    allowed = torch.rand(TIME, TIME) < 0.6
    allowed.fill_diagonal_(True)
    torch_mask = {"causal": torch.ones(TIME, TIME).tril().bool(), "explicit": allowed}.get(kind)
    source = values(1) if kind == "source" else x
    expected, weights = theirs(
        x,
        source,
        source,
        attn_mask=None if torch_mask is None else ~torch_mask,
        average_attn_weights=False,
    )
    record: dict | None = {} if recorded else None
    if kind == "causal":
        context = make_context(causal=True, record=record, name="layer 1")
    else:
        mask = None if torch_mask is None else torch_mask[None, None]
        context = make_context(mask, record=record, name="layer 1")
    output = attention(x, context, source=source if kind == "source" else None)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=0)
    if record is not None:
        torch.testing.assert_close(record["layer 1 attention"].values, weights.detach())


def test_fully_masked_query_outputs_the_bias():
    attention = MultiHeadAttention(WIDTH, HEADS)
    mask = torch.ones(1, 1, TIME, TIME, dtype=torch.bool)
    mask[0, 0, 2] = False
    for record in (None, {}):
        output = attention(values(), make_context(mask, record=record))
        expected = attention.output.bias.expand(2, WIDTH)
        torch.testing.assert_close(output[:, 2], expected)
        assert not output.isnan().any()


def test_kv_cache_equals_full_attention():
    for positions in (None, RotaryEmbedding(4), ShawPositions(4, clip_distance=2)):
        attention = MultiHeadAttention(WIDTH, HEADS, positions=positions)
        x = values()
        whole = attention(x, make_context(causal=True))
        cache = KVCache.empty(2, HEADS, WIDTH // HEADS, x)
        for position in range(TIME):
            here, upto = torch.tensor([[position]]), torch.arange(position + 1)[None]
            context = LayerContext(query_positions=here, key_positions=upto)
            output, cache = attention.step(x[:, position : position + 1], context, cache)
            torch.testing.assert_close(output[:, 0], whole[:, position], atol=1e-5, rtol=0)


def test_cosine_scores_are_scale_invariant():
    """Scaling queries and keys by ten changes dot-product scores but not cosine scores."""
    x = values()
    for kind, scale_sensitive in ((DotProductScores, True), (CosineScores, False)):
        attention = MultiHeadAttention(WIDTH, HEADS, scores=kind(WIDTH // HEADS), bias=False)
        before = attention(x, make_context())
        with torch.no_grad():
            attention.qkv_projection.weight[: 2 * WIDTH] *= 10
        after = attention(x, make_context())
        assert scale_sensitive == (not torch.allclose(before, after, atol=1e-5))


@pytest.mark.parametrize("name", [name for name in get_args(PositionName) if name != "pairs"])
def test_cosine_scores_are_scale_invariant_with_positions(name: str):
    """Scaling queries and keys by ten changes log p with dot products, not with cosines."""
    batch = Batch.collate([[2, 7, 5, 9, 6, 8, 3], [2, 5, 5, 7, 3]], pad=0)
    for cosine in (False, True):
        torch.manual_seed(0)
        config = gpt.Config(
            width=16,
            layers=2,
            heads=2,
            length=32,
            clip_distance=2,
            positions=name,
            cosine_attention=cosine,
        )
        system = gpt.build(config, Vocabulary(size=12)).eval()
        for parameter in system.parameters():
            nn.init.normal_(parameter, std=0.5)
        with torch.no_grad():
            before = system.log_prob(batch).per_token
            for part in system.modules():
                if isinstance(part, MultiHeadAttention):
                    part.qkv_projection.weight[: 2 * part.inner_width] *= 10
                    part.qkv_projection.bias[: 2 * part.inner_width] *= 10
            change = (system.log_prob(batch).per_token - before).abs().max()
        assert change < 1e-4 if cosine else change > 0.1


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_cosine_transformer_xl_scores_by_loops(temperature: float):
    """√D cos(q̃ + u, k) + cos(q, R) |R| + v · R / √D, over the temperature, for each pair.

    q̃ = √D q / |q|; R = W [sin(d ω), cos(d ω)] with its norm, and v a bias (Transformer-XL).
    """
    torch.manual_seed(0)
    size = WIDTH // HEADS
    positions = TransformerXLPositions(WIDTH, HEADS, size)
    for parameter in positions.parameters():
        nn.init.normal_(parameter)
    scores = CosineScores(size, temperature=temperature)
    attention = MultiHeadAttention(WIDTH, HEADS, scores=scores, positions=positions)
    record: dict = {}
    attention(values(), make_context(record=record))
    q, k, _ = (
        part.view(2, TIME, HEADS, size)
        for part in attention.qkv_projection(values()).split(WIDTH, -1)
    )
    cosine = torch.nn.functional.cosine_similarity
    expected = torch.zeros(2, HEADS, TIME, TIME)
    for b, h, i, j in itertools.product(range(2), range(HEADS), range(TIME), range(TIME)):
        wave = positions.sinusoids.sinusoid_table(torch.tensor([i - j]))[0]
        vector = positions.project(wave).view(HEADS, size)[h]
        query, key = q[b, i, h], k[b, j, h]
        level = math.sqrt(size) * query / query.norm()
        turned = level + positions.content_bias[h]
        expected[b, h, i, j] = (
            math.sqrt(size) * cosine(turned, key, dim=0)
            + cosine(query, vector, dim=0) * vector.norm()
            + positions.position_bias[h] @ vector / math.sqrt(size)
        )
    weights = torch.softmax(expected / temperature, -1)
    torch.testing.assert_close(record["attention"].values, weights.detach(), atol=1e-5, rtol=0)


def test_cosine_equals_dot_product_for_vectors_of_norm_sqrt_d():
    """If queries and keys have norm √D, both scores agree, with Shaw's positions too."""
    torch.manual_seed(0)
    size = WIDTH // HEADS
    shaw = ShawPositions(size, clip_distance=2)
    queries, keys, attended_values = torch.randn(3, 2, HEADS, TIME, size).unbind(0)
    queries, keys = (
        CosineScores(size).queries_for_positions(queries),
        CosineScores(size).queries_for_positions(keys),
    )
    torch.testing.assert_close(queries.norm(dim=-1), torch.full((2, HEADS, TIME), size**0.5))
    plain = MultiHeadAttention(WIDTH, HEADS, positions=shaw)
    cosine = MultiHeadAttention(WIDTH, HEADS, positions=shaw, scores=CosineScores(size))
    cosine.load_state_dict(plain.state_dict())
    torch.testing.assert_close(
        cosine._attend(queries, keys, attended_values, make_context()),
        plain._attend(queries, keys, attended_values, make_context()),
    )


def test_scores_by_hand():
    """D = 4, q = (1, 1, 1, 1), k = (2, 0, 0, 0): 2 / √4, halved at temperature 2; √4 · cos = 1."""
    q, k = torch.ones(1, 1, 1, 4), torch.tensor([2.0, 0, 0, 0]).view(1, 1, 1, 4)
    for scores, expected in (
        (DotProductScores(4), 1.0),
        (DotProductScores(4, temperature=2.0), 0.5),
        (DotProductScores(4, scaled=False), 2.0),
        (CosineScores(4), 1.0),
    ):
        product = (scores.prepare(q) * scores.prepare(k)).sum() * scores.scale
        assert product.item() == pytest.approx(expected)


def test_temperature_zero_is_hard_attention():
    attention = MultiHeadAttention(
        WIDTH, HEADS, scores=DotProductScores(WIDTH // HEADS, temperature=0.0)
    )
    record: dict = {}
    attention(values(), make_context(record=record))
    weights = record["attention"].values
    assert set(weights.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, HEADS, TIME))
    softened = MultiHeadAttention(
        WIDTH, HEADS, scores=DotProductScores(WIDTH // HEADS, temperature=1e-4)
    )
    softened.load_state_dict(attention.state_dict())
    torch.testing.assert_close(
        softened(values(), make_context()), attention(values(), make_context()), atol=1e-4, rtol=0
    )
    attention(values(), make_context()).sum().backward()
    assert attention.qkv_projection.weight.grad.abs().sum() > 0


def test_disabled_head_contributes_zero():
    attention = MultiHeadAttention(WIDTH, HEADS)
    disabled = attention(values(), make_context(disabled_heads=frozenset({1})))
    with torch.no_grad():
        attention.output.weight[:, 4:8] = 0
    torch.testing.assert_close(disabled, attention(values(), make_context()))


def test_rotary_products_depend_only_on_distance():
    rotary = RotaryEmbedding(8)
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def product(i: int, j: int) -> float:
        turned = (
            rotary.transform_queries(q, torch.tensor([[i]])),
            rotary.transform_keys(k, torch.tensor([[j]])),
        )
        return float((turned[0] * turned[1]).sum())

    assert product(3, 1) == pytest.approx(product(12, 10), abs=1e-5)
    assert product(3, 1) != pytest.approx(product(3, 2), abs=1e-3)
    assert product(5, 5) == pytest.approx(float((q * k).sum()), abs=1e-5)


def test_shaw_by_loops():
    torch.manual_seed(0)
    width = WIDTH // HEADS
    shaw = ShawPositions(width, clip_distance=2)
    attention = MultiHeadAttention(WIDTH, HEADS, positions=shaw)
    x = values()
    q, k, v = (
        t.view(2, TIME, HEADS, width) for t in attention.qkv_projection(x).split(WIDTH, dim=-1)
    )
    expected = torch.zeros(2, TIME, HEADS, width)
    for b in range(2):
        for h in range(HEADS):
            for i in range(TIME):
                clipped = [max(-2, min(2, j - i)) + 2 for j in range(TIME)]
                scores = torch.stack(
                    [q[b, i, h] @ (k[b, j, h] + shaw.keys[c]) for j, c in enumerate(clipped)]
                )
                weights = torch.softmax(scores / math.sqrt(width), 0)
                expected[b, i, h] = sum(
                    w * (v[b, j, h] + shaw.values[c])
                    for j, (w, c) in enumerate(zip(weights, clipped, strict=True))
                )
    torch.testing.assert_close(
        attention(x, make_context()), attention.output(expected.flatten(2)), atol=1e-5, rtol=0
    )


def test_alibi_by_hand():
    bias = AlibiBias(2)(torch.arange(3)[None], torch.arange(3)[None])
    # Two heads have slopes 2^-4 and 2^-8.
    assert bias[0, 0, 2].tolist() == [-2 / 16, -1 / 16, 0]
    assert bias[0, 1, 0].tolist() == [0, -1 / 256, -2 / 256]


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_buckets_equal_t5(bidirectional: bool):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    relative_positions = torch.arange(-200, 201)
    ours = T5RelativeBias(2, buckets=32, max_distance=128, bidirectional=bidirectional).bucket(
        relative_positions
    )
    theirs = t5.T5Attention._relative_position_bucket(
        relative_positions, bidirectional=bidirectional, num_buckets=32, max_distance=128
    )
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("buckets", [4, 5, 8, 32])
def test_relative_buckets_are_monotonic_in_distance(buckets: int, bidirectional: bool):
    """From the least `max_distance` on: exact distances have own buckets, far ones share
    one."""
    exact = exact_bucket_count(buckets, bidirectional=bidirectional)
    assert exact == buckets // (4 if bidirectional else 2)
    for max_distance in (exact + 1, 2 * exact + 1, 128):
        table = T5RelativeBias(
            2, buckets=buckets, max_distance=max_distance, bidirectional=bidirectional
        )
        past_buckets = table.bucket(-torch.arange(200))
        last = (buckets // 2 if bidirectional else buckets) - 1
        assert past_buckets[:exact].tolist() == list(range(exact))
        assert (past_buckets.diff() >= 0).all() and (past_buckets[max_distance:] == last).all()
        future_buckets = table.bucket(torch.arange(1, 200))
        assert torch.equal(
            future_buckets,
            past_buckets[1:] + last + 1 if bidirectional else torch.zeros(199).long(),
        )


def test_default_position_encoding_is_identity():
    plain = RelativePositionEncoding()
    x = torch.randn(1, 1, 2, 4)
    positions = torch.arange(2)[None]
    assert plain.transform_queries(x, positions) is x and plain.transform_keys(x, positions) is x
    assert plain.bias(x, LayerContext(query_positions=positions, key_positions=positions)) is None
