"""Transformer-XL's positions: the formula pair by pair, and as a scheme for other Transformers."""

from __future__ import annotations

import math

import pytest
import torch

from lmlab.core.attention_mask import CausalMask
from lmlab.core.batch import Batch
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.attention_context import AttentionContext
from lmlab.layers.relative_positions import TransformerXLPositions
from lmlab.zoo import gpt

WIDTH, HEADS, HEAD_WIDTH = 10, 3, 4


def make(**settings) -> TransformerXLPositions:
    torch.manual_seed(0)
    positions = TransformerXLPositions(WIDTH, HEADS, HEAD_WIDTH, **settings)
    for parameter in positions.parameters():
        torch.nn.init.normal_(parameter)
    return positions


def scope_of(queries: list[int], keys: list[int], **segments: torch.Tensor) -> AttentionContext:
    at = {"query_positions": torch.tensor([queries]), "key_positions": torch.tensor([keys])}
    return AttentionContext(**at, **segments)


def sinusoids(distance: int) -> torch.Tensor:
    """[sin(d ω_0) …, cos(d ω_0) …], ω_i = 10000^(-2i/W), number by number."""
    angles = [distance * 10_000.0 ** (-i / WIDTH) for i in range(0, WIDTH, 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)])


@pytest.mark.parametrize("max_distance", [0, 2])
def test_scores_are_the_three_terms_pair_by_pair(max_distance: int):
    """(q + u)·k + (q + v)·R_{i-j} + (q + w)·s_ij, with a loop over pairs; memory at -2 and -1."""
    positions = make(segments=True, max_distance=max_distance)
    at_query, at_key = [0, 1, 2], [-2, -1, 0, 1, 2]
    kinds = torch.tensor([[0, 0, 2, 0, 1]])
    scope = scope_of(at_query, at_key, query_segments=kinds[:, 2:], key_segments=kinds)
    queries, keys = torch.randn(1, HEADS, 3, HEAD_WIDTH), torch.randn(1, HEADS, 5, HEAD_WIDTH)
    turned = positions.transform_queries(queries, scope.query_positions)
    found = turned @ keys.transpose(-1, -2) + positions.bias(queries, scope)
    assert positions.transform_keys(keys, scope.key_positions) is keys
    matrix = positions.project.weight.view(HEADS, HEAD_WIDTH, WIDTH)
    for head in range(HEADS):
        for i, j in [(i, j) for i in range(3) for j in range(5)]:
            query, key = queries[0, head, i], keys[0, head, j]
            distance = at_query[i] - at_key[j]
            if max_distance:
                distance = max(-max_distance, min(max_distance, distance))
            same = kinds[0, 2 + i] == kinds[0, j]
            expected = (
                (query + positions.content_bias[head]) @ key
                + (query + positions.position_bias[head]) @ (matrix[head] @ sinusoids(distance))
                + (query + positions.segment_bias[head])
                @ positions.segments[0 if same else 1, head]
            )
            torch.testing.assert_close(found[0, head, i, j], expected, atol=1e-4, rtol=1e-5)


def test_without_segments_there_is_no_third_term():
    queries = torch.randn(1, HEADS, 2, HEAD_WIDTH)
    told = {"query_segments": torch.tensor([[0, 1]]), "key_segments": torch.tensor([[0, 1]])}
    plain, segmented = make(), make(segments=True)
    segmented.load_state_dict(plain.state_dict(), strict=False)
    silent = scope_of([0, 1], [0, 1])
    expected = plain.bias(queries, silent)
    assert torch.equal(segmented.bias(queries, silent), expected)
    assert torch.equal(plain.bias(queries, scope_of([0, 1], [0, 1], **told)), expected)
    assert not torch.equal(segmented.bias(queries, scope_of([0, 1], [0, 1], **told)), expected)


def test_rows_with_their_own_positions_each_have_their_own_distances():
    positions, queries = make(), torch.randn(2, HEADS, 2, HEAD_WIDTH)
    apart = AttentionContext(
        query_positions=torch.tensor([[0, 1], [5, 9]]),
        key_positions=torch.tensor([[0, 1], [2, 20]]),
    )
    found = positions.bias(queries, apart)
    for row, (at_query, at_key) in enumerate([([0, 1], [0, 1]), ([5, 9], [2, 20])]):
        alone = positions.bias(queries[row : row + 1], scope_of(at_query, at_key))
        torch.testing.assert_close(found[row : row + 1], alone, atol=1e-5, rtol=1e-5)


def build_gpt():
    torch.manual_seed(0)
    config = gpt.Config(width=16, layers=2, heads=2, length=32, positions="transformer-xl")
    system = gpt.build(config, Vocabulary(size=12)).eval()
    for parameter in system.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return system


def test_a_gpt_with_these_positions_steps_as_it_scores():
    system, tokens = build_gpt(), [2, 7, 5, 9, 6, 8, 3]
    with torch.no_grad():
        at_once = system.log_prob(Batch.collate([tokens], pad=0)).per_token[0]
        state, stepped = system.start(1), []
        for token in tokens[1:]:
            stepped.append(system.peek(state).log_probs[0, token])
            state = system.advance(state, torch.tensor([token]))
    torch.testing.assert_close(torch.stack(stepped), at_once, atol=1e-5, rtol=0)


def test_only_distances_count_and_the_order_does():
    """The same text further on gives the same hidden states; other distances give others."""
    system = build_gpt()
    tokens, lengths = torch.tensor([[2, 7, 5, 9]]), torch.tensor([4])
    place = torch.arange(4)[None]

    def read(positions: torch.Tensor) -> torch.Tensor:
        view = View(
            inputs=tokens, lengths=lengths, attention_mask=CausalMask(), positions=positions
        )
        return system.hidden(view).values

    with torch.no_grad():
        torch.testing.assert_close(read(place + 100), read(place), atol=1e-4, rtol=0)
        assert (read(3 * place) - read(place)).abs().max() > 0.1
        assert (read(-place) - read(place)).abs().max() > 0.1
