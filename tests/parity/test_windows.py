"""`window` by hand; `independent` against the unigram entropy that it can't beat."""

from __future__ import annotations

from itertools import pairwise
from math import exp, log

import numpy as np
import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary


def test_window_sentence_by_hand():
    """Width 1, window 2, tokens a = 5 and b = 6; only </s>, <unk>, a, b can come next."""
    module = system_module("window")
    system = module.build(module.Config(width=1, size=2, dropout=0.0), Vocabulary(size=7)).eval()
    vectors = {0: 9.0, 1: 0.5, 2: 1.0, 3: -1.0, 4: 9.0, 5: 2.0, 6: -0.5}
    with torch.no_grad():
        system.backbone.embedding.weight.copy_(torch.tensor([[v] for v in vectors.values()]))
        # mix holds the oldest distance first: W_2 = 0.25, W_1 = 0.5
        system.backbone.mix.weight.copy_(torch.tensor([[0.25, 0.5]]))
    batch = Batch.collate([[2, 5, 6, 3]], pad=0)

    def log_softmax(hidden: float, target: int) -> float:
        total = sum(exp(vectors[k] * hidden) for k in (1, 3, 5, 6))
        return vectors[target] * hidden - log(total)

    expected = [
        log_softmax(0.5 * 1.0, 5),  # after <s>: W_1 e(<s>), nothing further back
        log_softmax(0.5 * 2.0 + 0.25 * 1.0, 6),  # after <s> a
        log_softmax(0.5 * -0.5 + 0.25 * 2.0, 3),  # after a b
    ]
    assert system.log_prob(batch).per_token[0].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.fixture
def text() -> Batch:
    generator = np.random.default_rng(0)
    sequences = [
        [2, *generator.choice([5, 6, 7], size=6, p=[0.6, 0.3, 0.1]), 3] for _ in range(200)
    ]
    return Batch.collate([[int(t) for t in s] for s in sequences], pad=0)


def unigram_entropy(batch: Batch) -> float:
    predicted = batch.tokens[:, 1:].flatten().numpy()
    shares = np.bincount(predicted) / len(predicted)
    return float(-sum(p * np.log(p) for p in shares if p > 0))


def test_independent_by_em_reaches_unigram_entropy(text):
    torch.manual_seed(0)
    module = system_module("independent")
    system = module.build(module.Config(states=4), Vocabulary(size=8))
    entropy, losses = unigram_entropy(text), []
    for _ in range(5):
        losses.append(-system.log_prob(text).totals.sum().item() / (200 * 7))
        system.maximise(system.expect(text))
    final = -system.log_prob(text).totals.sum().item() / (200 * 7)
    assert all(later <= earlier + 1e-6 for earlier, later in pairwise(losses))
    # Not below the entropy (to float32's accuracy), and at it: a sum of tables is a table.
    assert entropy - 1e-5 <= final <= entropy + 1e-4


def test_independent_by_gradient_reaches_unigram_entropy(text):
    torch.manual_seed(0)
    module = system_module("independent")
    system = module.build(module.Config(states=4, fitting="gradient"), Vocabulary(size=8))
    optimizer = torch.optim.Adam(system.parameters(), lr=0.1)
    for _ in range(150):
        optimizer.zero_grad()
        loss, _ = system.loss(text)
        loss.mean.backward()
        optimizer.step()
    entropy = unigram_entropy(text)
    assert entropy - 1e-5 <= loss.mean.item() <= entropy + 5e-3
