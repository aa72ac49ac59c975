"""KV cache: appending never changes earlier or branched caches; shared sources."""

from __future__ import annotations

import pytest
import torch

from lmlab.layers.attention import MultiHeadAttention
from lmlab.layers.kv_cache import SPARE_POSITIONS, CrossAttentionCache, KVCache, SourceAssignment
from lmlab.layers.sequence_mixer import LayerContext


def random_keys(positions: int, seed: int, rows: int = 2) -> torch.Tensor:
    return torch.randn(rows, 3, positions, 4, generator=torch.Generator().manual_seed(seed))


def test_append_leaves_the_old_cache_unchanged():
    with torch.no_grad():
        first = KVCache.of(random_keys(2, 0), random_keys(2, 1))
        first_keys = first.keys.clone()
        second = first.append(random_keys(1, 2), random_keys(1, 3))
        third = second.append(random_keys(1, 4), random_keys(1, 5))
        assert torch.equal(first.keys, first_keys) and first.length == 2
        assert torch.equal(
            third.keys, torch.cat([first_keys, random_keys(1, 2), random_keys(1, 4)], 2)
        )
        assert torch.equal(
            third.values, torch.cat([random_keys(2, 1), random_keys(1, 3), random_keys(1, 5)], 2)
        )


def test_branched_caches_are_independent():
    with torch.no_grad():
        trunk = KVCache.of(random_keys(2, 0), random_keys(2, 1)).append(
            random_keys(1, 2), random_keys(1, 3)
        )
        left = trunk.append(random_keys(1, 4), random_keys(1, 4))
        right = trunk.append(random_keys(1, 5), random_keys(1, 5))
        assert torch.equal(left.keys[:, :, -1:], random_keys(1, 4))
        assert torch.equal(right.keys[:, :, -1:], random_keys(1, 5))
        assert left.storage is trunk.storage and right.storage is not trunk.storage


def test_append_reuses_storage_with_spare_positions():
    with torch.no_grad():
        cache = KVCache.of(random_keys(2, 0), random_keys(2, 1)).append(
            random_keys(1, 2), random_keys(1, 3)
        )
        storage = cache.storage
        for step in range(SPARE_POSITIONS - 2):
            cache = cache.append(random_keys(1, step), random_keys(1, step))
            assert cache.storage is storage


def test_select_picks_rows_and_identity_makes_no_copy():
    with torch.no_grad():
        cache = KVCache.of(random_keys(3, 0), random_keys(3, 1))
        assert cache.select(torch.tensor([0, 1])) is cache
        swapped = cache.select(torch.tensor([1, 0, 1]))
        assert torch.equal(swapped.keys, cache.keys[[1, 0, 1]])
        grown = swapped.append(random_keys(1, 2, rows=3), random_keys(1, 3, rows=3))
        assert torch.equal(grown.values[:, :, :3], cache.values[[1, 0, 1]])


def test_gradients_flow_through_appended_keys():
    new = random_keys(1, 2).requires_grad_()
    cache = KVCache.of(random_keys(2, 0), random_keys(2, 1)).append(new, new)
    cache.keys.sum().backward()
    assert torch.equal(new.grad, torch.ones_like(new))
    assert not cache.detach().keys.requires_grad


def test_cross_attention_cache_shares_the_source_of_texts():
    keys, values = random_keys(2, 0, rows=3), random_keys(2, 1, rows=3)
    forked = CrossAttentionCache.of(keys, values, SourceAssignment.one_to_one(3)).select(
        torch.tensor([0, 0, 2, 2])
    )
    assignment = forked.assignment
    assert torch.equal(forked.keys, keys[[0, 2]])
    assert assignment.sources.tolist() == [0, 0, 1, 1] and assignment.slots.tolist() == [0, 1, 0, 1]
    assert forked.select(torch.tensor([1, 1, 3, 2])).keys is forked.keys
    fewer = forked.select(torch.tensor([2, 3]))
    assert torch.equal(fewer.values, values[[2]]) and fewer.assignment.first_texts.tolist() == [0]


def test_layers_share_the_source_assignment():
    assignment, rows = SourceAssignment.one_to_one(3), torch.tensor([0, 0, 2])
    layers = [
        CrossAttentionCache.of(random_keys(2, seed, rows=3), random_keys(2, 9, rows=3), assignment)
        for seed in (0, 1)
    ]
    first, second = (layer.select(rows) for layer in layers)
    assert first.assignment is second.assignment
    assert layers[0].select(torch.tensor([1])).assignment.sources.tolist() == [0]


@pytest.mark.parametrize("rows", [[0, 0, 2, 2], [2, 0], [0, 1, 1, 2], [1, 1, 1], [2, 1, 2]])
def test_shared_source_attention_equals_copied_sources(rows):
    torch.manual_seed(0)
    attention = MultiHeadAttention(8, heads=2).eval()
    source, queries = torch.randn(3, 4, 8), torch.randn(len(rows), 1, 8)
    real = torch.arange(4) < torch.tensor([4, 2, 3])[rows][:, None]
    positions = torch.arange(4)[None]
    context = LayerContext(
        mask=real[:, None, None], query_positions=positions[:, :1], key_positions=positions
    )
    keys_values = attention.keys_values(source, positions)
    shared = CrossAttentionCache.of(*keys_values, SourceAssignment.one_to_one(3)).select(
        torch.tensor(rows)
    )
    with torch.no_grad():
        output = attention.cross_attend(queries, context, shared)
        expected = attention(queries, context, source=source[rows])
    torch.testing.assert_close(output, expected)
