"""Word2vec: context windows, negative-sampling loss and filling, against values by hand."""

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
"""Special tokens 0 to 4, and the words 5, 6, 7."""
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
def test_cbow_loss_by_hand(context: str, hidden: float):
    """The context is 5 and 6; the word is 7, noise 5 and 6: scores 2h, h/2, -h/2."""
    losses, present = negative_sampling_loss(
        build("cbow", context=context).emission, CONTEXTS, TARGET, NOISE
    )
    expected = softplus(-2 * hidden) + softplus(hidden / 2) + softplus(-hidden / 2)
    assert losses[present].tolist() == pytest.approx([expected])


def test_cbow_sigmoid_product_loss_by_hand():
    """-log σ(2)σ(4) - log(1 - σ(½)σ(1)) - log(1 - σ(-½)σ(-1))."""
    losses, present = negative_sampling_loss(
        build("cbow", context="product").emission, CONTEXTS, TARGET, NOISE
    )

    def both(score: float) -> float:
        return 1 / (1 + math.exp(-score)) / (1 + math.exp(-2 * score))

    expected = -math.log(both(2)) - math.log(1 - both(0.5)) - math.log(1 - both(-0.5))
    assert losses[present].tolist() == pytest.approx([expected])


def test_skip_gram_loss_by_hand():
    """One loss per context word, the noise shared: x = 1 and x = 2."""
    losses, present = negative_sampling_loss(build("skipgram").emission, CONTEXTS, TARGET, NOISE)
    expected = [softplus(-2 * x) + softplus(x / 2) + softplus(-x / 2) for x in (1, 2)]
    assert losses[present].tolist() == pytest.approx(expected)


def test_fill_is_noise_times_the_exponential_of_the_score():
    """5 <mask> 6: h = 1.5, scores ¾, -¾, 3, and -ln 5 of the unknown word; all counts are alike."""
    system = build("cbow")
    batch = Batch.collate([[2, 5, 4, 6, 3]], pad=0)
    weights = [math.exp(s) for s in (-math.log(5), 0.75, -0.75, 3)]
    with torch.no_grad():
        filled = system.fill(batch, batch.tokens == 4).log_probs[0].exp()
    assert filled[[1, 5, 6, 7]].tolist() == pytest.approx([w / sum(weights) for w in weights])
    assert filled[[0, 2, 3, 4]].tolist() == [0.0] * 4
    # Skip-gram: the mean of the distributions given 5 alone and 6 alone.
    with torch.no_grad():
        mixed = build("skipgram").fill(batch, batch.tokens == 4).log_probs[0].exp()
    weights_by_context = [
        [math.exp(s) for s in (-math.log(5), x / 2, -x / 2, 2 * x)] for x in (1, 2)
    ]
    mean = [sum(row[i] / sum(row) for row in weights_by_context) / 2 for i in range(4)]
    assert mixed[[1, 5, 6, 7]].tolist() == pytest.approx(mean)


def test_log_prob_is_pseudo_likelihood_without_end_token():
    system = build("cbow", window=1)
    batch = Batch.collate([[2, 5, 6, 7, 3]], pad=0)
    hidden = (2.0, 0.0, 2.0)  # x(6); the mean of x(5) and x(7); x(6)
    scores = [[-math.log(5), h / 2, -h / 2, 2 * h] for h in hidden]
    expected = [
        row[position] - math.log(sum(map(math.exp, row)))
        for row, position in zip(scores, (1, 2, 3), strict=True)
    ]
    with torch.no_grad():
        scored = system.log_prob(batch)
    assert scored.kind == "pseudo"
    assert scored.per_token[0].tolist() == pytest.approx([*expected, 0.0], abs=1e-6)


def context_positions(system: Word2Vec, tokens: list[int], seed: int = 0) -> list[set[int]]:
    """The context positions of each position of a text in training."""
    batch = Batch.collate([tokens], pad=0)
    view = system.objective.view(batch, generator=torch.Generator().manual_seed(seed))
    mask = view.attention_mask.mask(view.lengths, len(tokens))[0]
    return [set(row.nonzero().flatten().tolist()) for row in mask]


def test_windows_stop_at_sentences_and_skip_unknown_words():
    """Window 1 never shrinks. Position 3 is unknown: 2 and 4 are adjacent; 6 starts a sentence."""
    contexts = context_positions(build("skipgram", window=1), [2, 5, 6, 1, 7, 3, 5, 6, 3])
    assert contexts == [set(), {2}, {1, 4}, set(), {2}, set(), {7}, {6}, set()]


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


def test_random_contexts_are_sampled_from_the_whole_window():
    contexts = [
        context_positions(build("skipgram", window=3, random_contexts=2), [2, *[5] * 9, 3], seed)[5]
        for seed in range(60)
    ]
    assert {len(context) for context in contexts} == {2}
    assert set.union(*contexts) == {2, 3, 4, 6, 7, 8}


def test_loss_without_negatives_vanishes_for_large_scores():
    """With positive examples alone, equal and ever longer vectors are best."""
    system = build("cbow", negatives=0)
    batch = Batch.collate([[2, 5, 6, 5, 3]], pad=0)
    with torch.no_grad():
        for scale, upper_bound in ((1.0, math.log(2)), (10.0, 1e-20)):
            system.emission.inputs.fill_(scale)
            system.emission.outputs.fill_(scale)
            loss, _ = system.loss(batch, generator=torch.Generator().manual_seed(0))
            assert loss.count == 3 and loss.mean.item() < upper_bound


def test_whole_gradient_scales_by_the_context_size():
    """word2vec gives each of the two context words the whole gradient of their mean."""
    gradients = []
    for whole in (True, False):
        system = build("cbow", whole_gradient=whole)
        losses, _ = negative_sampling_loss(system.emission, CONTEXTS, TARGET, NOISE)
        losses.sum().backward()
        gradients.append(system.emission.inputs.grad)
    assert gradients[1][5].item() != 0
    torch.testing.assert_close(gradients[0], 2 * gradients[1])
