"""Word2vec by the full softmax and with a limit on vector lengths, against loops and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.word2vec import Word2Vec

WORDS = range(5, 9)
"""Special tokens 0 to 4, and four words."""


def build(name: str, width: int = 3, **settings) -> Word2Vec:
    module = system_module(name)
    config = module.Config(width=width, sample=0.0, window=2, objective="softmax", **settings)
    system: Word2Vec = module.build(config, Vocabulary(size=9)).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in (system.emission.inputs, system.emission.outputs):
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return system


def softmax_loss(scores: dict[int, Tensor], word: int) -> Tensor:
    """-log of the word's share of the exponentials, summed over the words one by one."""
    return -(scores[word] - torch.stack([score.exp() for score in scores.values()]).sum().log())


def expected_loss(system: Word2Vec, context: list[int], word: int, code: str) -> Tensor:
    """By loops over context words and words, in the definition's order."""
    x, o = system.emission.inputs, system.emission.outputs
    if code in ("each", "product"):
        each = [{w: (o[w] * x[j]).sum() for w in WORDS} for j in context]
        return torch.stack([softmax_loss(scores, word) for scores in each]).sum()
    pooled = torch.stack([x[j] for j in context]).sum(0) / (len(context) if code == "mean" else 1)
    return softmax_loss({w: (o[w] * pooled).sum() for w in WORDS}, word)


@pytest.mark.parametrize(
    ("name", "code", "settings"),
    [
        ("skipgram", "each", {}),
        ("cbow", "product", {"context": "product"}),
        ("cbow", "mean", {"context": "mean", "whole_gradient": False}),
        ("cbow", "sum", {"context": "sum"}),
    ],
)
def test_loss_and_gradient_equal_loops(name: str, code: str, settings: dict):
    """Two positions with two and three context words; special tokens are no candidates."""
    contexts, targets = [[5, 6], [8, 8, 5]], [7, 5]
    ours, reference = build(name, **settings), build(name, **settings)
    padded = torch.tensor([[5, 6, -1], [8, 8, 5]])
    losses, present = ours.objective.losses(
        ours.emission, padded, torch.tensor(targets), generator=None
    )
    total = (losses * present).sum()
    expected = sum(
        expected_loss(reference, context, word, code)
        for context, word in zip(contexts, targets, strict=True)
    )
    assert int(present.sum()) == (5 if code in ("each", "product") else 2)
    assert total.item() == pytest.approx(expected.item())
    total.backward()
    expected.backward()
    for actual, brute in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, brute.grad)


@torch.no_grad()
def test_fill_is_the_softmax():
    """5 <mask> 6: skip-gram's is the mean of two softmaxes, the product's their product."""
    batch = Batch.collate([[2, 5, 4, 6, 3]], pad=0)
    systems = [build("skipgram"), build("cbow", context="product")]
    both = [s.fill(batch, batch.tokens == 4).log_probs[0].exp() for s in systems]
    x, o = systems[0].emission.inputs, systems[0].emission.outputs
    each = [torch.softmax(o[5:] @ x[j], 0) for j in (5, 6)]
    torch.testing.assert_close(both[0][5:], (each[0] + each[1]) / 2)
    product = each[0] * each[1]
    torch.testing.assert_close(both[1][5:], product / product.sum())
    assert all(filled[:5].sum() == 0 for filled in both)


@torch.no_grad()
def test_unknown_word_has_its_share_of_the_training_text():
    """<unk> twice, the words 5, 6 and 7 once; a word that does not occur counts as once too."""
    system = build("skipgram")
    system.setup_data(np.array([2, 5, 1, 6, 1, 7, 3]), np.array([0, 7]))
    filled = (
        system.fill(batch := Batch.collate([[2, 5, 4, 3]], pad=0), batch.tokens == 4)
        .log_probs[0]
        .exp()
    )
    # Less the one that any count is at least, <unk> has 1 beside 4 of words.
    assert filled[1].item() == pytest.approx(1 / 5)
    assert filled.sum().item() == pytest.approx(1.0)


@torch.no_grad()
@pytest.mark.parametrize("name", ["cbow", "skipgram"])
def test_no_vector_is_longer_than_the_limit(name: str):
    system = build(name, max_norm=0.5)
    lengths = system.vectors().norm(dim=1)
    raw = system.emission.inputs.norm(dim=1)
    torch.testing.assert_close(lengths, raw.clamp(max=0.5))
    assert (raw > 0.5).any(), "some are longer before"


@torch.no_grad()
def test_limit_bounds_every_score():
    """|o · x| ≤ m², so that a word's probability is at least 1 / (1 + 3 exp(2 m²)) of four."""
    system = build("skipgram", max_norm=0.5)
    system.emission.inputs *= 1000
    batch = Batch.collate([[2, 5, 4, 3]], pad=0)
    filled = system.fill(batch, batch.tokens == 4).log_probs[0].exp()[5:]
    assert filled.min().item() >= 1 / (1 + 3 * math.exp(0.5))
