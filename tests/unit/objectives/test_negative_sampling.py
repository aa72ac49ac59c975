"""Word models: who sees whom, what is lost, what is filled in, against sums worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.word2vec import Word2Vec
from lmlab.objectives.negative_sampling import negative_sampling_loss

VOCABULARY = Vocabulary(size=8)
"""Symbols 0 to 4, and the words 5, 6, 7."""
X = torch.tensor([[0.0]] * 5 + [[1.0], [2.0], [-1.0]])
O = torch.tensor([[0.0]] * 5 + [[0.5], [-0.5], [2.0]])  # noqa: E741


def build(name: str, **settings) -> Word2Vec:
    """Width 1; x(5) = 1, x(6) = 2, x(7) = -1; o(5) = ½, o(6) = -½, o(7) = 2; all counts alike."""
    module = system_module(name)
    system = module.build(module.Config(width=1, sample=0.0, **settings), VOCABULARY)
    with torch.no_grad():
        system.emission.inputs.copy_(X)
        system.emission.outputs.copy_(O)
    return system


def softplus(number: float) -> float:
    return math.log1p(math.exp(number))


CONTEXTS, TARGET, NOISE = torch.tensor([[5, 6, -1]]), torch.tensor([7]), torch.tensor([[5, 6]])


@pytest.mark.parametrize(("context", "hidden"), [("mean", 1.5), ("sum", 3.0)])
def test_loss_of_cbow_by_hand(context: str, hidden: float):
    """Around are 5 and 6; the word is 7, noise 5 and 6: scores 2h, h/2, -h/2."""
    lost, present = negative_sampling_loss(
        build("cbow", context=context).emission, CONTEXTS, TARGET, NOISE
    )
    expected = softplus(-2 * hidden) + softplus(hidden / 2) + softplus(-hidden / 2)
    assert lost[present].tolist() == pytest.approx([expected])


def test_loss_of_the_product_of_sigmoids_by_hand():
    """-log σ(2)σ(4) - log(1 - σ(½)σ(1)) - log(1 - σ(-½)σ(-1)), as 002 writes it."""
    lost, present = negative_sampling_loss(
        build("cbow", context="product").emission, CONTEXTS, TARGET, NOISE
    )

    def both(score: float) -> float:
        return 1 / (1 + math.exp(-score)) / (1 + math.exp(-2 * score))

    expected = -math.log(both(2)) - math.log(1 - both(0.5)) - math.log(1 - both(-0.5))
    assert lost[present].tolist() == pytest.approx([expected])


def test_loss_of_skip_gram_by_hand():
    """One for each word around, the noise shared: x = 1 and x = 2."""
    lost, present = negative_sampling_loss(build("skipgram").emission, CONTEXTS, TARGET, NOISE)
    expected = [softplus(-2 * x) + softplus(x / 2) + softplus(-x / 2) for x in (1, 2)]
    assert lost[present].tolist() == pytest.approx(expected)


def test_what_is_filled_in_is_noise_times_the_exponential_of_the_score():
    """5 <mask> 6: h = 1.5, scores ¾, -¾, 3, and -ln 5 of the unknown word; all counts are alike."""
    system = build("cbow")
    batch = Batch.collate([[2, 5, 4, 6, 3]], pad=0)
    weights = [math.exp(s) for s in (-math.log(5), 0.75, -0.75, 3)]
    with torch.no_grad():
        found = system.fill(batch, batch.tokens == 4).log_probs[0].exp()
    assert found[[1, 5, 6, 7]].tolist() == pytest.approx([w / sum(weights) for w in weights])
    assert found[[0, 2, 3, 4]].tolist() == [0.0] * 4
    # Skip-gram: the mean of what 5 says alone and what 6 says alone.
    with torch.no_grad():
        mixed = build("skipgram").fill(batch, batch.tokens == 4).log_probs[0].exp()
    each = [[math.exp(s) for s in (-math.log(5), x / 2, -x / 2, 2 * x)] for x in (1, 2)]
    mean = [sum(row[i] / sum(row) for row in each) / 2 for i in range(4)]
    assert mixed[[1, 5, 6, 7]].tolist() == pytest.approx(mean)


def test_log_prob_adds_what_each_word_has_given_those_around_and_the_end_is_free():
    system = build("cbow", window=1)
    batch = Batch.collate([[2, 5, 6, 7, 3]], pad=0)
    hidden = (2.0, 0.0, 2.0)  # x(6); the mean of x(5) and x(7); x(6)
    scores = [[-math.log(5), h / 2, -h / 2, 2 * h] for h in hidden]
    expected = [
        row[place] - math.log(sum(map(math.exp, row)))
        for row, place in zip(scores, (1, 2, 3), strict=True)
    ]
    with torch.no_grad():
        found = system.log_prob(batch)
    assert found.kind == "pseudo"
    assert found.per_token[0].tolist() == pytest.approx([*expected, 0.0], abs=1e-6)


def seen_by(system: Word2Vec, tokens: list[int], seed: int = 0) -> list[set[int]]:
    """The places that each place of a text sees in training."""
    batch = Batch.collate([tokens], pad=0)
    view = system.objective.view(batch, generator=torch.Generator().manual_seed(seed))
    mask = view.attention_mask.mask(view.lengths, len(tokens))[0]
    return [set(row.nonzero().flatten().tolist()) for row in mask]


def test_windows_end_at_sentences_and_unknown_words_are_passed_over():
    """Window 1 is never shrunk. Place 3 is unknown: 2 and 4 are neighbours; 6 begins a sentence."""
    found = seen_by(build("skipgram", window=1), [2, 5, 6, 1, 7, 3, 5, 6, 3])
    assert found == [set(), {2}, {1, 4}, set(), {2}, set(), {7}, {6}, set()]


def test_windows_are_shrunk_uniformly():
    """Of a window of 4 to one side: 1, 2, 3 or 4 words, each in a quarter of 2,000 draws.

    Pearson's statistic with 3 degrees of freedom exceeds 30.7 with probability 1e-6.
    """
    system = build("skipgram", window=4)
    batch = Batch.collate([[2, *[5] * 9]] * 2000, pad=0)
    view = system.objective.view(batch, generator=torch.Generator().manual_seed(0))
    widths = view.attention_mask.mask(view.lengths, 10)[:, 1].sum(1)
    counts = torch.bincount(widths, minlength=5)[1:].double()
    assert counts.sum() == 2000 and ((counts - 500) ** 2 / 500).sum().item() < 30.7


def test_random_contexts_are_so_many_of_the_whole_window():
    found = [
        seen_by(build("skipgram", window=3, random_contexts=2), [2, *[5] * 9, 3], seed)[5]
        for seed in range(60)
    ]
    assert {len(each) for each in found} == {2}
    assert set.union(*found) == {2, 3, 4, 6, 7, 8}


def test_without_negatives_the_loss_has_nothing_against_ever_larger_scores():
    """002: with nothing but right words, all vectors alike and long is best."""
    system = build("cbow", negatives=0)
    batch = Batch.collate([[2, 5, 6, 5, 3]], pad=0)
    with torch.no_grad():
        for scale, most in ((1.0, math.log(2)), (10.0, 1e-20)):
            system.emission.inputs.fill_(scale)
            system.emission.outputs.fill_(scale)
            loss, _ = system.loss(batch, generator=torch.Generator().manual_seed(0))
            assert loss.count == 3 and loss.mean.item() < most


def test_the_whole_gradient_of_a_mean_is_its_share_times_the_words_around():
    """word2vec gives each of the two words around what the mean of them would get."""
    gradients = []
    for whole in (True, False):
        system = build("cbow", whole_gradient=whole)
        lost, _ = negative_sampling_loss(system.emission, CONTEXTS, TARGET, NOISE)
        lost.sum().backward()
        gradients.append(system.emission.inputs.grad)
    assert gradients[1][5].item() != 0
    torch.testing.assert_close(gradients[0], 2 * gradients[1])
