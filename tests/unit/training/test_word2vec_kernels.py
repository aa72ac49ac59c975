"""Compiled word2vec: samples against their distributions, steps against torch's gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.word2vec import Word2Vec
from lmlab.objectives.negative_sampling import negative_sampling_loss

pytest.importorskip("numba", reason="compiled code needs numba: pip install lmlab[words]")

from lmlab.training import word2vec_kernels as kernels

PEARSON_LIMIT = 40.0
"""Pearson's statistic with up to 5 degrees of freedom exceeds it with probability below 1e-6."""


def pearson(observed: np.ndarray, expected: np.ndarray) -> float:
    return float(((observed - expected) ** 2 / expected).sum())


def test_alias_table_represents_the_distribution_exactly():
    """Cell i gives i with probability `stay` and else its alias; cells are uniform."""
    distribution = np.array([0.0, 0.5, 0.01, 0.3, 0.0, 0.19])
    stay, alias = kernels.alias_table(distribution)
    represented = stay / 6
    np.add.at(represented, alias, (1 - stay) / 6)
    assert represented == pytest.approx(distribution, abs=1e-12)


def test_samples_follow_their_distributions():
    """A text of one long sentence of three words; 0 ends it, 4 is not a word and never kept."""
    generator = np.random.default_rng(0)
    tokens = generator.choice([1, 2, 3, 4], size=20_000).astype(np.int32)
    kept = np.array([kernels.SENTENCE_BREAK, 1.0, 0.5, 0.1, 0.0])
    distribution = np.array([0.0, 0.6, 0.3, 0.1, 0.0])
    words, around, counts, noise = kernels.sample_training_pairs(
        tokens, kept, *kernels.alias_table(distribution), 5, 0, 2, 7
    )
    token_counts = np.bincount(tokens, minlength=5)[1:4]
    kept_counts = np.bincount(words, minlength=5)
    assert kept_counts[[0, 4]].tolist() == [0, 0] and kept_counts[1] == token_counts[0]
    for word, probability in ((2, 0.5), (3, 0.1)):
        deviation = kept_counts[word] - token_counts[word - 1] * probability
        standard_deviation = math.sqrt(token_counts[word - 1] * probability * (1 - probability))
        assert abs(deviation) < 5 * standard_deviation
    noise_counts = np.bincount(noise.ravel(), minlength=5)
    assert noise_counts[[0, 4]].tolist() == [0, 0]
    assert pearson(noise_counts[1:4], distribution[1:4] * noise.size) < PEARSON_LIMIT
    # Away from the ends a window of 1 … 5 to either side holds 2, 4, 6, 8 or 10 words.
    sizes = np.bincount(counts[5:-5], minlength=11)
    assert sizes[1::2].sum() == 0
    assert pearson(sizes[2::2], np.full(5, sizes.sum() / 5)) < PEARSON_LIMIT
    radius = counts[100] // 2
    neighbours = [*words[100 - radius : 100], *words[101 : 101 + radius]]
    assert around[100, : counts[100]].tolist() == neighbours


def test_windows_stop_at_sentence_boundaries():
    tokens = np.array([0, 1, 2, 3, 0, 0, 4, 5, 0] * 500, dtype=np.int32)
    kept = np.array([kernels.SENTENCE_BREAK, 1.0, 1.0, 1.0, 1.0, 1.0])
    tables = kernels.alias_table(np.array([0.0, 1, 1, 1, 1, 1]))
    words, around, counts, _ = kernels.sample_training_pairs(tokens, kept, *tables, 5, 1, 0, 3)
    assert words.tolist() == [1, 2, 3, 4, 5] * 500 and set(counts.tolist()) == {1}
    first = around[:, 0].reshape(500, 5)
    assert set(first[:, 3]) == {5} and set(first[:, 4]) == {4}
    for column, others in ((0, (2, 3)), (1, (1, 3)), (2, (1, 2))):
        observed = [int((first[:, column] == other).sum()) for other in others]
        assert (
            sum(observed) == 500
            and pearson(np.array(observed), np.array([250, 250])) < PEARSON_LIMIT
        )


def small_case() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Twenty positions; the noise words of each differ from each other and from its word."""
    generator = np.random.default_rng(1)
    distinct = np.array([generator.permutation(np.arange(5, 13))[:4] for _ in range(20)])
    around = generator.integers(5, 13, size=(20, 4))
    counts = generator.integers(0, 5, size=20)
    arrays = (distinct[:, 0], around, counts, distinct[:, 1:])
    return tuple(array.astype(np.int32) for array in arrays)  # type: ignore[return-value]


def build(name: str, **settings) -> Word2Vec:
    module = system_module(name)
    system = module.build(module.Config(width=6, **settings), Vocabulary(size=13))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in system.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    project(system, settings.get("max_norm", 0))
    return system


@torch.no_grad()
def project(system: Word2Vec, limit: float) -> None:
    """Shorten all vectors to a limit on their length, if there is one."""
    for parameter in system.parameters() if limit else ():
        parameter.copy_(torch.renorm(parameter, 2, 0, limit))


def gradient_step(system: Word2Vec, contexts, word, noise, rate: float, limit: float) -> None:
    """One step of SGD by torch's gradient, projected onto the vectors within the limit."""
    system.zero_grad()
    losses, present = negative_sampling_loss(
        system.emission, torch.tensor(contexts), torch.tensor(word), torch.tensor(noise)
    )
    (losses * present).sum().backward()
    with torch.no_grad():
        for parameter in system.parameters():
            assert parameter.grad is not None
            parameter -= rate * parameter.grad
    project(system, limit)


def reference_steps(system: Word2Vec, code: str, rate: float, limit: float) -> None:
    """The positions of the small case one after another, as each compiled loop takes them."""
    for word, row, count, noise in zip(*map(np.ndarray.tolist, small_case()), strict=True):
        around = row[:count]
        if code == "each":
            for one in around:
                gradient_step(system, [[one]], [word], [noise], rate, limit)
        elif around and code == "product":
            gradient_step(system, [around], [word], np.empty((1, 0), np.int64), rate, limit)
            for noise_word in noise:
                noise_gradient_step(system, around, noise_word, rate, limit)
        elif around:
            gradient_step(system, [around], [word], [noise], rate, limit)


def noise_gradient_step(
    system: Word2Vec, around: list[int], noise_word: int, rate: float, limit: float
) -> None:
    """A step on a noise word alone: -log σ(-score)."""
    system.zero_grad()
    joined = system.emission.combined_scores(torch.tensor([around]), torch.tensor([[noise_word]]))
    torch.nn.functional.softplus(joined.scores).sum().backward()
    with torch.no_grad():
        for parameter in system.parameters():
            assert parameter.grad is not None
            parameter -= rate * parameter.grad
    project(system, limit)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("skipgram", {}),
        ("cbow", {"context": "mean"}),
        ("cbow", {"context": "mean", "whole_gradient": False}),
        ("cbow", {"context": "sum"}),
        ("cbow", {"context": "product"}),
        ("skipgram", {"max_norm": 1.5}),
        ("cbow", {"context": "sum", "max_norm": 1.5}),
        ("cbow", {"context": "product", "max_norm": 1.5}),
    ],
    ids=["skipgram", "mean", "true-mean", "sum", "product", "limit", "sum-limit", "product-limit"],
)
def test_compiled_steps_equal_torch_gradient_steps(name: str, settings: dict[str, Any]):
    from lmlab.training.word2vec_fitter import _compiled_step

    ours, reference = build(name, **settings), build(name, **settings)
    reference.emission.max_norm = 0.0  # steps are projected instead
    loss, predictions = _compiled_step(ours)(*small_case(), np.float32(0.1))
    reference_steps(
        reference, reference.emission.combination.code, 0.1, settings.get("max_norm", 0)
    )
    assert loss > 0 and predictions > 0
    for actual, expected in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(actual, expected, atol=2e-5, rtol=2e-5)
    assert not torch.equal(ours.emission.outputs, build(name, **settings).emission.outputs)
