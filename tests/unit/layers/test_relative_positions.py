"""Transformer-XL's positions: the formula pair by pair, and as a scheme for other Transformers."""

from __future__ import annotations

import math

import pytest
import torch

from lmlab.core.attention_mask import CausalMask
from lmlab.core.batch import Batch
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.relative_positions import TransformerXLPositions
from lmlab.layers.sequence_mixer import LayerContext
from lmlab.zoo import gpt

WIDTH, HEADS, HEAD_WIDTH = 10, 3, 4


def make(**settings) -> TransformerXLPositions:
    torch.manual_seed(0)
    positions = TransformerXLPositions(WIDTH, HEADS, HEAD_WIDTH, **settings)
    for parameter in positions.parameters():
        torch.nn.init.normal_(parameter)
    return positions


def make_context(queries: list[int], keys: list[int], **segments: torch.Tensor) -> LayerContext:
    at = {"query_positions": torch.tensor([queries]), "key_positions": torch.tensor([keys])}
    return LayerContext(**at, **segments)


def sinusoids(distance: int) -> torch.Tensor:
    """[sin(d ω_0) …, cos(d ω_0) …], ω_i = 10000^(-2i/W), number by number."""
    angles = [distance * 10_000.0 ** (-i / WIDTH) for i in range(0, WIDTH, 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)])


@pytest.mark.parametrize("max_distance", [0, 2])
def test_scores_equal_the_three_terms_pair_by_pair(max_distance: int):
    """(q + u)·k + (q + v)·R_{i-j} + (q + w)·s_ij, with a loop over pairs; memory at -2 and -1."""
    positions = make(segments=True, max_distance=max_distance)
    at_query, at_key = [0, 1, 2], [-2, -1, 0, 1, 2]
    segment_ids = torch.tensor([[0, 0, 2, 0, 1]])
    context = make_context(
        at_query, at_key, query_segments=segment_ids[:, 2:], key_segments=segment_ids
    )
    queries, keys = torch.randn(1, HEADS, 3, HEAD_WIDTH), torch.randn(1, HEADS, 5, HEAD_WIDTH)
    turned = positions.transform_queries(queries, context.query_positions)
    scores = turned @ keys.transpose(-1, -2) + positions.bias(queries, context)
    assert positions.transform_keys(keys, context.key_positions) is keys
    matrix = positions.project.weight.view(HEADS, HEAD_WIDTH, WIDTH)
    for head in range(HEADS):
        for i, j in [(i, j) for i in range(3) for j in range(5)]:
            query, key = queries[0, head, i], keys[0, head, j]
            distance = at_query[i] - at_key[j]
            if max_distance:
                distance = max(-max_distance, min(max_distance, distance))
            same = segment_ids[0, 2 + i] == segment_ids[0, j]
            expected = (
                (query + positions.content_bias[head]) @ key
                + (query + positions.position_bias[head]) @ (matrix[head] @ sinusoids(distance))
                + (query + positions.segment_bias[head])
                @ positions.segments[0 if same else 1, head]
            )
            torch.testing.assert_close(scores[0, head, i, j], expected, atol=1e-4, rtol=1e-5)


def test_segment_term_needs_segments_in_layer_and_input():
    queries = torch.randn(1, HEADS, 2, HEAD_WIDTH)
    segments = {"query_segments": torch.tensor([[0, 1]]), "key_segments": torch.tensor([[0, 1]])}
    plain, segmented = make(), make(segments=True)
    segmented.load_state_dict(plain.state_dict(), strict=False)
    context = make_context([0, 1], [0, 1])
    expected = plain.bias(queries, context)
    assert torch.equal(segmented.bias(queries, context), expected)
    assert torch.equal(plain.bias(queries, make_context([0, 1], [0, 1], **segments)), expected)
    assert not torch.equal(
        segmented.bias(queries, make_context([0, 1], [0, 1], **segments)), expected
    )


def test_rows_may_have_different_positions():
    positions, queries = make(), torch.randn(2, HEADS, 2, HEAD_WIDTH)
    context = LayerContext(
        query_positions=torch.tensor([[0, 1], [5, 9]]),
        key_positions=torch.tensor([[0, 1], [2, 20]]),
    )
    bias = positions.bias(queries, context)
    for row, (at_query, at_key) in enumerate([([0, 1], [0, 1]), ([5, 9], [2, 20])]):
        alone = positions.bias(queries[row : row + 1], make_context(at_query, at_key))
        torch.testing.assert_close(bias[row : row + 1], alone, atol=1e-5, rtol=1e-5)


def build_gpt():
    torch.manual_seed(0)
    config = gpt.Config(width=16, layers=2, heads=2, length=32, positions="transformer-xl")
    system = gpt.build(config, Vocabulary(size=12)).eval()
    for parameter in system.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return system


def test_gpt_stepping_equals_full_forward():
    system, tokens = build_gpt(), [2, 7, 5, 9, 6, 8, 3]
    with torch.no_grad():
        at_once = system.log_prob(Batch.collate([tokens], pad=0)).per_token[0]
        state, stepped = system.start(1), []
        for token in tokens[1:]:
            stepped.append(system.peek(state).log_probs[0, token])
            state = system.advance(state, torch.tensor([token]))
    torch.testing.assert_close(torch.stack(stepped), at_once, atol=1e-5, rtol=0)


def test_hidden_states_depend_on_signed_distance_only():
    """Shifted positions give the same hidden states; other distances give others."""
    system = build_gpt()
    tokens, lengths = torch.tensor([[2, 7, 5, 9]]), torch.tensor([4])
    default_positions = torch.arange(4)[None]

    def encode(positions: torch.Tensor) -> torch.Tensor:
        view = View(
            inputs=tokens, lengths=lengths, attention_mask=CausalMask(), positions=positions
        )
        return system.hidden(view).values

    with torch.no_grad():
        torch.testing.assert_close(
            encode(default_positions + 100), encode(default_positions), atol=1e-4, rtol=0
        )
        assert (encode(3 * default_positions) - encode(default_positions)).abs().max() > 0.1
        assert (encode(-default_positions) - encode(default_positions)).abs().max() > 0.1
