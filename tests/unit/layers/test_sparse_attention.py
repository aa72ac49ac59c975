"""Sparse attention against brute force and dense attention under the same mask."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from lmlab.core.attention_mask import CausalMask, ExplicitMask, FullMask
from lmlab.core.errors import UserError
from lmlab.layers import sparse_pattern
from lmlab.layers.attention import CosineScores, DotProductScores
from lmlab.layers.relative_positions import (
    AlibiBias,
    RelativePositionEncoding,
    RotaryEmbedding,
    ShawPositions,
    T5RelativeBias,
    TransformerXLPositions,
)
from lmlab.layers.sequence_mixer import LayerContext, attention_mask_tensor
from lmlab.layers.sparse_attention import SparseAttention
from lmlab.layers.sparse_pattern import SparsePattern

WIDTH, HEADS, ROWS, TIME = 8, 2, 2, 40
HEAD = WIDTH // HEADS
PATTERNS = (
    "window:3",
    "window:1",
    "global:2",
    "window:5+global:2",
    "strided:4",
    "strided:4+window:2+global:3",
)
POSITIONS: dict[str, Callable[[], RelativePositionEncoding | None]] = {
    "none": lambda: None,
    "rotary": lambda: RotaryEmbedding(HEAD),
    "shaw": lambda: ShawPositions(HEAD, clip_distance=2),
    "transformer-xl": lambda: TransformerXLPositions(WIDTH, HEADS, HEAD),
}
EACH_PATTERN = pytest.mark.parametrize("pattern", PATTERNS)


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks of four queries, so that short texts have many."""
    monkeypatch.setattr(sparse_pattern, "MIN_BLOCK", 4)
    sparse_pattern._window_groups.cache_clear()
    sparse_pattern._strided_groups.cache_clear()
    yield
    sparse_pattern._window_groups.cache_clear()
    sparse_pattern._strided_groups.cache_clear()


def attention(pattern: str, **options: object) -> SparseAttention:
    torch.manual_seed(0)
    parsed = SparsePattern.parse(pattern)
    assert parsed is not None
    mixer = SparseAttention(WIDTH, HEADS, pattern=parsed, **options).double()  # type: ignore[arg-type]
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return mixer


def texts(time: int = TIME) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, time, WIDTH, generator=generator).double()


def context_of(mask: object, lengths: list[int] | None = None) -> LayerContext:
    full = torch.tensor(lengths or [TIME] * ROWS)
    tensor, causal = attention_mask_tensor(mask, full, TIME)  # type: ignore[arg-type]
    positions = torch.arange(TIME)[None]
    return LayerContext(
        mask=tensor, causal=causal, query_positions=positions, key_positions=positions
    )


def attended(pattern: SparsePattern, i: int, *, causal: bool) -> list[int]:
    """The positions that i attends to, from the papers' definitions."""
    first = set(range(pattern.global_tokens))
    result = {j for j in range(TIME) if abs(i - j) < pattern.window}
    if pattern.stride:
        result |= {j for j in range(TIME) if (i - j) % pattern.stride == 0}
    result |= set(range(TIME)) if i in first else first
    return sorted(j for j in result if j <= i or not causal)


@pytest.mark.parametrize("causal", [True, False])
@EACH_PATTERN
def test_equals_a_softmax_over_the_attended_positions(pattern: str, causal: bool) -> None:
    """Brute force, position by position and head by head."""
    mixer, values = attention(pattern), texts()
    output = mixer(values, context_of(CausalMask() if causal else FullMask()))
    queries, keys, contents = (
        mixer.qkv_projection(values).view(ROWS, TIME, 3, HEADS, HEAD).unbind(2)
    )
    expected = torch.zeros(ROWS, TIME, HEADS, HEAD).double()
    for i in range(TIME):
        seen = attended(mixer.pattern, i, causal=causal)
        scores = torch.einsum("bhd,bjhd->bhj", queries[:, i], keys[:, seen]) / math.sqrt(HEAD)
        expected[:, i] = torch.einsum("bhj,bjhd->bhd", scores.softmax(-1), contents[:, seen])
    expected = mixer.output(expected.flatten(2))
    torch.testing.assert_close(output, expected, atol=1e-10, rtol=0)


def masks() -> dict[str, LayerContext]:
    generator = torch.Generator().manual_seed(2)
    visible = torch.rand(ROWS, TIME, TIME, generator=generator) < 0.5
    segments = (torch.arange(TIME) > 17).long().expand(ROWS, -1)
    full = context_of(FullMask())
    return {
        "causal": context_of(CausalMask()),
        "full": full,
        "padded": context_of(FullMask(), [TIME, 23]),
        "explicit": context_of(ExplicitMask(visible)),
        "segments": replace(full, query_segments=segments, key_segments=segments),
        "alibi": replace(full, score_bias=AlibiBias(HEADS).double()),
        "buckets": replace(
            context_of(CausalMask()),
            score_bias=T5RelativeBias(HEADS, buckets=8, max_distance=16).double(),
        ),
    }


@pytest.mark.parametrize("mask", masks())
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("pattern", ["window:4+global:1", "strided:5+global:1"])
def test_equals_dense_attention_under_the_same_mask(
    pattern: str, positions: str, mask: str
) -> None:
    """Values, and gradients of inputs and weights; capturing the weights computes densely."""
    encoding = POSITIONS[positions]()
    if isinstance(encoding, TransformerXLPositions):
        encoding = TransformerXLPositions(WIDTH, HEADS, HEAD, segments=True)
    mixer, context = attention(pattern, positions=encoding), masks()[mask]
    assert mixer.pattern.is_worthwhile(TIME)
    results = []
    for here in (context, context.with_captures({})):
        values = texts().requires_grad_()
        output = mixer(values, here)
        gradients = torch.autograd.grad(
            output.square().sum(), [values, *mixer.parameters()], allow_unused=True
        )
        results.append([output, *(gradient for gradient in gradients if gradient is not None)])
    assert len(results[0]) >= 6
    for sparse, dense in zip(*results, strict=True):
        torch.testing.assert_close(sparse, dense, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("scores", ["cosine", "hard"])
@EACH_PATTERN
def test_cosine_and_hard_scores(pattern: str, scores: str) -> None:
    kind = CosineScores(HEAD) if scores == "cosine" else DotProductScores(HEAD, temperature=0)
    mixer, values = attention(pattern, scores=kind), texts()
    context = context_of(FullMask())
    dense = mixer(values, context.with_captures({}))
    torch.testing.assert_close(mixer(values, context), dense, atol=1e-10, rtol=0)


def test_single_precision() -> None:
    mixer, values = attention("window:5+global:2").float(), texts().float()
    context = context_of(CausalMask())
    dense = mixer(values, context.with_captures({}))
    torch.testing.assert_close(mixer(values, context), dense, atol=1e-5, rtol=0)


@EACH_PATTERN
def test_far_positions_are_not_computed(pattern: str) -> None:
    """Pairs held by the groups: linear in the length but for the stride's T² / stride."""
    parsed = SparsePattern.parse(pattern)
    assert parsed is not None

    def pairs(time: int) -> int:
        groups = parsed.key_groups(time, causal=True)
        assert sum(int(group.allowed.sum()) for group in groups) == sum(
            int(parsed.allowed(torch.tensor([i]), torch.arange(i + 1)).sum()) for i in range(time)
        )
        return sum(group.allowed.numel() for group in groups)

    strided = 2 * 240**2 // parsed.stride if parsed.stride else 0
    assert pairs(240) <= 240 * (4 + 2 * parsed.window + parsed.global_tokens + 4) + strided


@pytest.mark.parametrize("parts", [[1] * 30, [13, 1, 16], [30]], ids=["ones", "parts", "whole"])
@pytest.mark.parametrize("positions", ["none", "rotary", "shaw"])
@pytest.mark.parametrize("pattern", ["window:3", "window:4+global:2", "strided:4"])
def test_steps_equal_the_whole_text_with_a_bounded_cache(
    pattern: str, positions: str, parts: list[int]
) -> None:
    mixer = attention(pattern, positions=POSITIONS[positions]()).requires_grad_(False)
    values = texts(30)
    here = torch.arange(30)[None]
    context = LayerContext(causal=True, query_positions=here, key_positions=here)
    whole = mixer(values, context)
    state, outputs, start = mixer.initial_state(ROWS, values), [], 0
    for size in parts:
        queries, keys = torch.arange(start, start + size), torch.arange(start + size)
        step = LayerContext(
            mask=None if size == 1 else (keys <= queries[:, None])[None, None],
            query_positions=queries[None],
            key_positions=keys[None],
        )
        output, state = mixer.step(values[:, start : start + size], step, state)
        state = state.select(torch.tensor([1, 0])).select(torch.tensor([1, 0]))
        outputs.append(output)
        start += size
        if not mixer.pattern.stride:
            bound = mixer.pattern.global_tokens + 2 * mixer.pattern.window
            assert state.cache.length <= bound
    torch.testing.assert_close(torch.cat(outputs, 1), whole, atol=1e-10, rtol=0)


def test_padding_between_parts_is_not_forgotten_about() -> None:
    """Where a row has padding in the middle, slots are no positions, so all are retained."""
    mixer = attention("window:3").requires_grad_(False)
    values = texts(12)
    lengths = torch.tensor([8, 5])
    first = LayerContext(
        mask=(torch.arange(8) < lengths[:, None])[:, None, None].expand(-1, 1, 8, 8),
        query_positions=torch.arange(8)[None],
        key_positions=torch.arange(8)[None],
    )
    _, state = mixer.step(values[:, :8], first, mixer.initial_state(ROWS, values))
    positions = torch.cat([torch.arange(8).expand(ROWS, -1), lengths[:, None]], 1)
    real = torch.cat([torch.arange(8) < lengths[:, None], torch.ones(ROWS, 1).bool()], 1)
    step = LayerContext(
        mask=real[:, None, None], query_positions=lengths[:, None], key_positions=positions
    )
    output, _ = mixer.step(values[:, 8:9], step, state)
    alone = torch.cat([values[1:, :5], values[1:, 8:9]], 1)
    here = torch.arange(6)[None]
    context = LayerContext(causal=True, query_positions=here, key_positions=here)
    torch.testing.assert_close(output[1], mixer(alone, context)[0, -1:], atol=1e-10, rtol=0)


@pytest.mark.parametrize("text", ["window", "window:0", "window:-2", "near:3", "window:2+window:3"])
def test_malformed_patterns_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="attention must be dense, or some of window:N"):
        SparsePattern.parse(text)


def test_settings() -> None:
    assert SparsePattern.parse("dense") is None
    assert SparsePattern.parse("global:2+window:64") == SparsePattern(window=64, global_tokens=2)
    assert SparsePattern.parse("strided:8") == SparsePattern(window=8, stride=8)
