"""The cache: what is appended is new, what was there stays, whoever else appends."""

from __future__ import annotations

import pytest
import torch

from lmlab.layers.attention import MultiHeadAttention
from lmlab.layers.attention_context import AttentionContext
from lmlab.layers.kv_cache import SPARE_POSITIONS, CrossAttentionCache, KVCache, SourceAssignment


def some(places: int, seed: int, rows: int = 2) -> torch.Tensor:
    return torch.randn(rows, 3, places, 4, generator=torch.Generator().manual_seed(seed))


def test_appending_leaves_the_old_as_it_was():
    with torch.no_grad():
        first = KVCache.of(some(2, 0), some(2, 1))
        kept = first.keys.clone()
        second = first.append(some(1, 2), some(1, 3))
        third = second.append(some(1, 4), some(1, 5))
        assert torch.equal(first.keys, kept) and first.length == 2
        assert torch.equal(third.keys, torch.cat([kept, some(1, 2), some(1, 4)], 2))
        assert torch.equal(third.values, torch.cat([some(2, 1), some(1, 3), some(1, 5)], 2))


def test_a_second_branch_does_not_disturb_the_first():
    with torch.no_grad():
        trunk = KVCache.of(some(2, 0), some(2, 1)).append(some(1, 2), some(1, 3))
        left = trunk.append(some(1, 4), some(1, 4))
        right = trunk.append(some(1, 5), some(1, 5))
        assert torch.equal(left.keys[:, :, -1:], some(1, 4))
        assert torch.equal(right.keys[:, :, -1:], some(1, 5))
        assert left.storage is trunk.storage and right.storage is not trunk.storage


def test_a_step_writes_in_place_where_there_is_room():
    with torch.no_grad():
        cache = KVCache.of(some(2, 0), some(2, 1)).append(some(1, 2), some(1, 3))
        storage = cache.storage
        for step in range(SPARE_POSITIONS - 2):
            cache = cache.append(some(1, step), some(1, step))
            assert cache.storage is storage


def test_rows_are_selected_and_the_same_rows_cost_nothing():
    with torch.no_grad():
        cache = KVCache.of(some(3, 0), some(3, 1))
        assert cache.select(torch.tensor([0, 1])) is cache
        swapped = cache.select(torch.tensor([1, 0, 1]))
        assert torch.equal(swapped.keys, cache.keys[[1, 0, 1]])
        grown = swapped.append(some(1, 2, rows=3), some(1, 3, rows=3))
        assert torch.equal(grown.values[:, :, :3], cache.values[[1, 0, 1]])


def test_gradients_flow_through_what_was_appended():
    new = some(1, 2).requires_grad_()
    cache = KVCache.of(some(2, 0), some(2, 1)).append(new, new)
    cache.keys.sum().backward()
    assert torch.equal(new.grad, torch.ones_like(new))
    assert not cache.detach().keys.requires_grad


def test_texts_of_one_source_share_it_and_change_places_for_nothing():
    keys, values = some(2, 0, rows=3), some(2, 1, rows=3)
    forked = CrossAttentionCache.of(keys, values, SourceAssignment.one_to_one(3)).select(
        torch.tensor([0, 0, 2, 2])
    )
    owners = forked.assignment
    assert torch.equal(forked.keys, keys[[0, 2]])
    assert owners.sources.tolist() == [0, 0, 1, 1] and owners.slots.tolist() == [0, 1, 0, 1]
    assert forked.select(torch.tensor([1, 1, 3, 2])).keys is forked.keys
    fewer = forked.select(torch.tensor([2, 3]))
    assert torch.equal(fewer.values, values[[2]]) and fewer.assignment.first_texts.tolist() == [0]


def test_layers_that_select_the_same_rows_share_who_owns_whom():
    owners, rows = SourceAssignment.one_to_one(3), torch.tensor([0, 0, 2])
    layers = [
        CrossAttentionCache.of(some(2, seed, rows=3), some(2, 9, rows=3), owners) for seed in (0, 1)
    ]
    first, second = (layer.select(rows) for layer in layers)
    assert first.assignment is second.assignment
    assert layers[0].select(torch.tensor([1])).assignment.sources.tolist() == [0]


@pytest.mark.parametrize("rows", [[0, 0, 2, 2], [2, 0], [0, 1, 1, 2], [1, 1, 1], [2, 1, 2]])
def test_texts_read_of_a_shared_source_what_each_would_read_of_a_copy(rows):
    torch.manual_seed(0)
    attention = MultiHeadAttention(8, heads=2).eval()
    source, asking = torch.randn(3, 4, 8), torch.randn(len(rows), 1, 8)
    real = torch.arange(4) < torch.tensor([4, 2, 3])[rows][:, None]
    places = torch.arange(4)[None]
    scope = AttentionContext(
        mask=real[:, None, None], query_positions=places[:, :1], key_positions=places
    )
    made = attention.keys_values(source, places)
    shared = CrossAttentionCache.of(*made, SourceAssignment.one_to_one(3)).select(
        torch.tensor(rows)
    )
    with torch.no_grad():
        found = attention.cross_attend(asking, scope, shared)
        expected = attention(asking, scope, source=source[rows])
    torch.testing.assert_close(found, expected)
