"""CogQA against cases worked by hand: graph update, pointers, labels, answers, growth."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from lmlab.layers.span_pointers import (
    best_spans,
    label_tensor,
    pointer_labels,
    pointer_log_probs,
    pointer_loss,
)
from lmlab.models.cogqa import GraphNetwork, NodePredictor


def gelu(x: float) -> float:
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def scalar_network(rounds: int, heard: float, kept: float) -> GraphNetwork:
    network = GraphNetwork(1, rounds=rounds)
    with torch.no_grad():
        network.neighbour_map.weight.fill_(heard)
        network.self_map.weight.fill_(kept)
    return network


def test_graph_update_averages_predecessors():
    """Three nodes of one number, 0 → 2 and 1 → 2, X = (1, 3, 2), W1 = 0.5, W2 = 0.25.

    D_22 = 2, so (A D⁻¹)ᵀ has the row (1/2, 1/2, 0) for node 2 and zeros for the others.
        σ(X W1) = (σ(0.5), σ(1.5), σ(1)) = (0.345731, 1.399789, 0.841345)
        Δ_2 = σ((0.345731 + 1.399789) / 2) = σ(0.872760) = 0.705717;  Δ_0 = Δ_1 = σ(0) = 0
        X' = (σ(0.25), σ(0.75), σ(0.5 + 0.705717)) = (0.149677, 0.580029, 1.068309)
    """
    edges = torch.tensor([[0, 0, 1], [0, 0, 1], [0, 0, 0]])
    result = scalar_network(1, 0.5, 0.25)(torch.tensor([[1.0], [3.0], [2.0]]), edges)
    change = gelu((gelu(0.5) + gelu(1.5)) / 2)
    by_hand = [gelu(0.25), gelu(0.75), gelu(0.5 + change)]
    assert by_hand == pytest.approx([0.149677, 0.580029, 1.068309], abs=1e-6)
    assert result.flatten().tolist() == pytest.approx(by_hand, abs=1e-6)


@torch.no_grad()
def test_two_graph_rounds_share_weights():
    """A chain 0 → 1 → 2, X = (1, 0, 0): node 2 hears of it in the second round, from node 1.

    After one round node 1 is a = σ(Δ) = σ(σ(σ(0.5))) = 0.128897 and node 2 is σ(σ(σ(0))) = 0; after
    two node 2 is σ(σ(σ(0.5 a))) = 0.008820.
    """
    edges = torch.tensor([[0, 1, 0], [0, 0, 1], [0, 0, 0]])
    start = torch.tensor([[1.0], [0.0], [0.0]])
    once = scalar_network(1, 0.5, 0.25)(start, edges)
    assert once.flatten().tolist()[1:] == pytest.approx([0.128897, 0.0], abs=1e-6)
    result = scalar_network(2, 0.5, 0.25)(start, edges)
    assert float(result[2]) == pytest.approx(0.008820, abs=1e-6)


def test_graph_update_equals_matrix_formula():
    """Δ = σ((A D⁻¹)ᵀ σ(X W1)), X' = σ(X W2 + Δ), every node with a predecessor."""
    torch.manual_seed(0)
    network, nodes = GraphNetwork(5, rounds=1), torch.randn(4, 5)
    edges = torch.tensor([[0, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 0], [0, 0, 1, 0]]).float()
    sigma = torch.nn.functional.gelu
    weights = network.neighbour_map.weight.T, network.self_map.weight.T
    normalised = edges @ torch.diag(1 / edges.sum(0))
    expected = sigma(nodes @ weights[1] + sigma(normalised.T @ sigma(nodes @ weights[0])))
    torch.testing.assert_close(network(nodes, edges), expected)


def test_graphs_in_a_batch_are_independent():
    torch.manual_seed(1)
    network, first, second = GraphNetwork(3), torch.randn(2, 3), torch.randn(3, 3)
    edges = torch.tensor([[0, 1], [0, 0]]), torch.tensor([[0, 1, 1], [0, 0, 1], [0, 0, 0]])
    both = network(torch.cat([first, second]), torch.block_diag(*edges))
    apart = torch.cat([network(first, edges[0]), network(second, edges[1])])
    torch.testing.assert_close(both, apart)


@torch.no_grad()
def test_node_predictor_by_hand():
    """w2 = (1, -1), W1 = ((1, 0), (0, 1)), b = 0: F(2, 1) = σ(2) - σ(1) = 1.954500 - 0.841345."""
    predictor = NodePredictor(2, 2)
    with torch.no_grad():
        predictor.inner.weight.copy_(torch.eye(2))
        predictor.inner.bias.zero_()
        predictor.outer.weight.copy_(torch.tensor([[1.0, -1.0]]))
        predictor.outer.bias.zero_()
    assert float(predictor(torch.tensor([2.0, 1.0]))) == pytest.approx(1.113155, abs=1e-5)


def test_best_spans_by_hand():
    """Seven positions; 0 is "nowhere", 3 … 6 the paragraph.

    P_start: 0.2 at position 0, and 0.1, 0.4, 0.05, 0.25 at 3 … 6. The best two starts are 4 and 6,
    both above 0.2. Ends of 4 within one token: P_end[4] = 0.1, P_end[5] = 0.3, so (4, 5), though
    P_end[6] = 0.5 is greater; of 6 only 6 itself. With K = 3 the third, position 3, is below 0.2.
    """
    start = torch.tensor([0.2, 0.0, 0.0, 0.1, 0.4, 0.05, 0.25]).log()
    end = torch.tensor([0.05, 0.0, 0.0, 0.05, 0.1, 0.3, 0.5]).log()
    allowed = torch.tensor([False, False, False, True, True, True, True])
    for top in (2, 3):
        spans = best_spans(start, end, allowed, top=top, max_length=1)
        assert [(span.first, span.last) for span in spans] == [(4, 5), (6, 6)]
        assert [span.probability for span in spans] == pytest.approx([0.4, 0.25])
    [single] = best_spans(start, end, allowed, top=1, max_length=2)
    assert (single.first, single.last) == (4, 6)


def test_no_span_when_position_0_is_likeliest():
    start = torch.tensor([0.6, 0.3, 0.1]).log()
    allowed = torch.tensor([False, True, True])
    assert best_spans(start, start, allowed, top=3, max_length=2) == []


@pytest.mark.parametrize("seed", range(8))
def test_best_spans_equal_brute_force(seed):
    generator = torch.Generator().manual_seed(seed)
    time, top, longest = 12, 4, 3
    start, end = torch.randn(2, time, generator=generator).log_softmax(1)
    allowed = torch.arange(time) >= 4
    positions = [p for p in range(4, time) if start[p] > start[0]]
    expected = [
        max(
            (
                (first, last)
                for first, last in product([position], range(position, time))
                if last <= position + longest
            ),
            key=lambda span: float(end[span[1]]),
        )
        for position in sorted(positions, key=lambda p: -float(start[p]))[:top]
    ]
    actual = best_spans(start, end, allowed, top=top, max_length=longest)
    assert [(span.first, span.last) for span in actual] == expected


def test_pointer_loss_of_two_hops_by_hand():
    """Uniform over position 0 and three positions of the paragraph: each log P is -log 4.

    Two hops (5, 5) and (6, 7), no answer: S_hop at 5 and 6, E_hop at 5 and 7, answers at 0; each of
    the four cross-entropies is log 4.
    """
    labels = pointer_labels([(5, 5), (6, 7)], None)
    assert labels == [[5, 6], [5, 7], [0], [0]]
    allowed = torch.tensor([[False] * 5 + [True] * 3])
    log_probs = pointer_log_probs(torch.zeros(1, 8, 4), allowed)
    result = pointer_loss(log_probs, label_tensor([labels]))
    assert float(result.total) == pytest.approx(4 * math.log(4))
    assert float(result.count) == 1


def test_pointer_loss_averages_over_hops():
    """P_start = 1/2, 1/4, 1/4 at positions 0, 1, 2 and hops that start at 1 and 2: -log 1/4.

    And where the first position has 1/4 and the second 1/8: -(log 1/4 + log 1/8)/2 = 2.5 log 2.
    """
    probabilities = torch.tensor([0.625, 0.25, 0.125])
    log_probs = probabilities.log()[None, :, None].expand(1, 3, 4)
    labels = label_tensor([[[1, 2], [], [], []]])
    result = pointer_loss(log_probs, labels)
    assert float(result.total) == pytest.approx(2.5 * math.log(2))
