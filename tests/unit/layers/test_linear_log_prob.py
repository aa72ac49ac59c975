"""Scores of a softmax layer without gradients: block by block, and of several targets at once."""

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
    """Hidden states, output vectors and offsets, of which whole blocks can't be predicted."""
    generator = torch.Generator().manual_seed(0)
    hidden = 3 * torch.randn(11, WIDTH, generator=generator)
    weight = torch.randn(WORDS, WIDTH, generator=generator)
    offsets = torch.randn(WORDS, generator=generator)
    offsets[[0, 2, 4]] = -torch.inf
    offsets[10:15] = offsets[20:] = -torch.inf
    return hidden, weight, offsets


@pytest.mark.parametrize("columns", [1, 5, 8, WORDS, 1024])
@pytest.mark.parametrize("rows", [1, 4, 1024])
def test_blocks_of_rows_and_of_tokens_change_nothing(layer, monkeypatch, rows, columns):
    monkeypatch.setattr(softmax_log_prob, "_ROWS_AT_ONCE", rows)
    monkeypatch.setattr(softmax_log_prob, "_COLUMNS_AT_ONCE", columns)
    hidden, weight, offsets = layer
    targets = torch.tensor([1, 3, 5, 6, 7, 8, 9, 15, 16, 17, 18])
    with torch.no_grad():
        found = softmax_log_prob.linear_log_prob(hidden, weight, offsets, targets)
        sums = log_normaliser(hidden, weight, offsets)
    expected = linear_log_prob_clear(hidden.double(), weight.double(), offsets.double(), targets)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    by_hand = (hidden.double() @ weight.double().T + offsets.double()).exp().sum(1).log()
    torch.testing.assert_close(sums.double(), by_hand, atol=1e-5, rtol=1e-5)
    # What is never predicted has no probability, whichever block it stands in.
    with torch.no_grad():
        never = softmax_log_prob.linear_log_prob(hidden[:2], weight, offsets, torch.tensor([2, 12]))
    assert never.tolist() == [-torch.inf, -torch.inf]


@pytest.mark.parametrize("gradients", [False, True])
def test_several_targets_of_one_hidden_state_are_as_each_by_itself(gradients):
    emission = Softmax(WIDTH, Vocabulary(size=WORDS), transform=torch.nn.Linear(3, WIDTH))
    hidden = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    which = torch.tensor([0, 2, 2, 1, 3, 2, 0])
    targets = torch.tensor([5, 6, 1, 3, 22, 6, 7])
    with torch.set_grad_enabled(gradients):
        found = emission.log_prob_by_index(hidden, which, targets)
    expected = emission.log_probs(hidden)[which, targets]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
