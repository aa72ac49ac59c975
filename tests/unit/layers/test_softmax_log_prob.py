"""Softmax log-probabilities without gradients: in blocks, and for several targets."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax
from lmlab.layers import softmax_log_prob
from lmlab.layers.softmax_log_prob import linear_log_prob_clear, log_normaliser

WIDTH, WORDS = 7, 23


@pytest.fixture
def layer() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, output vectors and offsets, with whole blocks of unpredictable tokens."""
    generator = torch.Generator().manual_seed(0)
    hidden = 3 * torch.randn(11, WIDTH, generator=generator)
    weight = torch.randn(WORDS, WIDTH, generator=generator)
    offsets = torch.randn(WORDS, generator=generator)
    offsets[[0, 2, 4]] = -torch.inf
    offsets[10:15] = offsets[20:] = -torch.inf
    return hidden, weight, offsets


@pytest.mark.parametrize("columns", [1, 5, 8, WORDS, 1024])
@pytest.mark.parametrize("rows", [1, 4, 1024])
def test_block_sizes_do_not_change_log_probs(layer, monkeypatch, rows, columns):
    monkeypatch.setattr(softmax_log_prob, "_ROWS_AT_ONCE", rows)
    monkeypatch.setattr(softmax_log_prob, "_COLUMNS_AT_ONCE", columns)
    hidden, weight, offsets = layer
    targets = torch.tensor([1, 3, 5, 6, 7, 8, 9, 15, 16, 17, 18])
    with torch.no_grad():
        log_probs = softmax_log_prob.linear_log_prob(hidden, weight, offsets, targets)
        sums = log_normaliser(hidden, weight, offsets)
    expected = linear_log_prob_clear(hidden.double(), weight.double(), offsets.double(), targets)
    torch.testing.assert_close(log_probs.double(), expected, atol=1e-5, rtol=1e-5)
    by_hand = (hidden.double() @ weight.double().T + offsets.double()).exp().sum(1).log()
    torch.testing.assert_close(sums.double(), by_hand, atol=1e-5, rtol=1e-5)
    # Unpredictable tokens have probability zero in any block.
    with torch.no_grad():
        unpredictable = softmax_log_prob.linear_log_prob(
            hidden[:2], weight, offsets, torch.tensor([2, 12])
        )
    assert unpredictable.tolist() == [-torch.inf, -torch.inf]


@pytest.mark.parametrize("gradients", [False, True])
def test_log_prob_by_index_equals_full_log_probs(gradients):
    emission = Softmax(WIDTH, Vocabulary(size=WORDS), transform=torch.nn.Linear(3, WIDTH))
    hidden = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    rows = torch.tensor([0, 2, 2, 1, 3, 2, 0])
    targets = torch.tensor([5, 6, 1, 3, 22, 6, 7])
    with torch.set_grad_enabled(gradients):
        log_probs = emission.log_prob_by_index(hidden, rows, targets)
    expected = emission.log_probs(hidden)[rows, targets]
    torch.testing.assert_close(log_probs, expected, atol=1e-5, rtol=1e-5)
