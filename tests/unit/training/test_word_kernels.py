"""Compiled word2vec: draws against their laws, steps against the gradient of the clear version."""

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

FAR = 40.0
"""Pearson's statistic with up to 5 degrees of freedom exceeds it with probability below 1e-6."""


def pearson(observed: np.ndarray, expected: np.ndarray) -> float:
    return float(((observed - expected) ** 2 / expected).sum())


def test_alias_table_holds_the_law_exactly():
    """Cell i gives i with `stay` and its alias with the rest, all cells alike."""
    law = np.array([0.0, 0.5, 0.01, 0.3, 0.0, 0.19])
    stay, alias = kernels.alias_table(law)
    held = stay / 6
    np.add.at(held, alias, (1 - stay) / 6)
    assert held == pytest.approx(law, abs=1e-12)


def test_draws_follow_their_laws():
    """A text of one long sentence of three words; 0 ends it, 4 is no word and never kept."""
    generator = np.random.default_rng(0)
    tokens = generator.choice([1, 2, 3, 4], size=20_000).astype(np.int32)
    kept = np.array([kernels.SENTENCE_BREAK, 1.0, 0.5, 0.1, 0.0])
    law = np.array([0.0, 0.6, 0.3, 0.1, 0.0])
    words, around, counts, noise = kernels.sample_training_pairs(
        tokens, kept, *kernels.alias_table(law), 5, 0, 2, 7
    )
    came = np.bincount(tokens, minlength=5)[1:4]
    stayed = np.bincount(words, minlength=5)
    assert stayed[[0, 4]].tolist() == [0, 0] and stayed[1] == came[0]
    for word, probability in ((2, 0.5), (3, 0.1)):
        away = stayed[word] - came[word - 1] * probability
        spread = math.sqrt(came[word - 1] * probability * (1 - probability))
        assert abs(away) < 5 * spread
    drawn = np.bincount(noise.ravel(), minlength=5)
    assert drawn[[0, 4]].tolist() == [0, 0]
    assert pearson(drawn[1:4], law[1:4] * noise.size) < FAR
    # Away from the ends a window of 1 … 5 to either side holds 2, 4, 6, 8 or 10 words.
    sizes = np.bincount(counts[5:-5], minlength=11)
    assert sizes[1::2].sum() == 0
    assert pearson(sizes[2::2], np.full(5, sizes.sum() / 5)) < FAR
    reach = counts[100] // 2
    near = [*words[100 - reach : 100], *words[101 : 101 + reach]]
    assert around[100, : counts[100]].tolist() == near


def test_windows_end_at_sentences_and_random_contexts_are_drawn_from_all_of_them():
    tokens = np.array([0, 1, 2, 3, 0, 0, 4, 5, 0] * 500, dtype=np.int32)
    kept = np.array([kernels.SENTENCE_BREAK, 1.0, 1.0, 1.0, 1.0, 1.0])
    tables = kernels.alias_table(np.array([0.0, 1, 1, 1, 1, 1]))
    words, around, counts, _ = kernels.sample_training_pairs(tokens, kept, *tables, 5, 1, 0, 3)
    assert words.tolist() == [1, 2, 3, 4, 5] * 500 and set(counts.tolist()) == {1}
    first = around[:, 0].reshape(500, 5)
    assert set(first[:, 3]) == {5} and set(first[:, 4]) == {4}
    for column, others in ((0, (2, 3)), (1, (1, 3)), (2, (1, 2))):
        found = [int((first[:, column] == other).sum()) for other in others]
        assert sum(found) == 500 and pearson(np.array(found), np.array([250, 250])) < FAR


def small_case() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Twenty places; noise words of a place differ from each other and from its word."""
    generator = np.random.default_rng(1)
    each = np.array([generator.permutation(np.arange(5, 13))[:4] for _ in range(20)])
    around = generator.integers(5, 13, size=(20, 4))
    counts = generator.integers(0, 5, size=20)
    drawn = (each[:, 0], around, counts, each[:, 1:])
    return tuple(array.astype(np.int32) for array in drawn)  # type: ignore[return-value]


def build(name: str, **settings) -> Word2Vec:
    module = system_module(name)
    system = module.build(module.Config(width=6, **settings), Vocabulary(size=13))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in system.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return system


def descend(system: Word2Vec, contexts, word, noise, rate: float) -> None:
    """One step of plain descent by torch's own gradient."""
    system.zero_grad()
    lost, present = negative_sampling_loss(
        system.emission, torch.tensor(contexts), torch.tensor(word), torch.tensor(noise)
    )
    (lost * present).sum().backward()
    with torch.no_grad():
        for parameter in system.parameters():
            assert parameter.grad is not None
            parameter -= rate * parameter.grad


def clear_version(system: Word2Vec, code: str, rate: float) -> None:
    """The places of the small case one after another, as each compiled loop takes them."""
    for word, row, count, noise in zip(*map(np.ndarray.tolist, small_case()), strict=True):
        around = row[:count]
        if code == "each":
            for one in around:
                descend(system, [[one]], [word], [noise], rate)
        elif around and code == "product":
            descend(system, [around], [word], np.empty((1, 0), np.int64), rate)
            for drawn in noise:
                descend_against(system, around, drawn, rate)
        elif around:
            descend(system, [around], [word], [noise], rate)


def descend_against(system: Word2Vec, around: list[int], drawn: int, rate: float) -> None:
    """A step on a noise word alone: -log σ(-score)."""
    system.zero_grad()
    joined = system.emission.combined_scores(torch.tensor([around]), torch.tensor([[drawn]]))
    torch.nn.functional.softplus(joined.scores).sum().backward()
    with torch.no_grad():
        for parameter in system.parameters():
            assert parameter.grad is not None
            parameter -= rate * parameter.grad


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("skipgram", {}),
        ("cbow", {"context": "mean"}),
        ("cbow", {"context": "mean", "whole_gradient": False}),
        ("cbow", {"context": "sum"}),
        ("cbow", {"context": "product"}),
    ],
    ids=["skipgram", "mean", "true-mean", "sum", "product"],
)
def test_compiled_steps_are_those_of_torchs_gradient(name: str, settings: dict[str, Any]):
    from lmlab.training.word2vec_fitter import _learner

    ours, clear = build(name, **settings), build(name, **settings)
    lost, looked = _learner(ours)(*small_case(), np.float32(0.1))
    clear_version(clear, clear.emission.combination.code, 0.1)
    assert lost > 0 and looked > 0
    for got, expected in zip(ours.parameters(), clear.parameters(), strict=True):
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-5)
    assert not torch.equal(ours.emission.outputs, build(name, **settings).emission.outputs)
