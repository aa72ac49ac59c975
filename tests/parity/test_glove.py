"""GloVe: counts, loss and a step by arithmetic; the minimum by alternating least squares."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.glove import GloVe
from lmlab.training.cooccurrence import Cooccurrences, WordStream, count_cooccurrences
from lmlab.training.glove_fitter import AdaGrad

VOCABULARY = Vocabulary(size=8)
"""Special tokens 0 to 4, and the words a, b, c: 5, 6, 7."""
A, B, C = 5, 6, 7
END, UNKNOWN = 3, 1


def count(
    tokens: list[int] | NDArray[np.int64], folder: Path, *, window: int, memory_mb: float = 1.0
) -> Cooccurrences:
    size = max(8, max(tokens) + 1)
    is_word, is_boundary = np.arange(size) > 4, np.arange(size) == END
    stream = WordStream(tokens=np.asarray(tokens), is_word=is_word, is_boundary=is_boundary)
    return count_cooccurrences(stream, window=window, memory_mb=memory_mb, folder=folder)


def as_dict(counts: Cooccurrences, size: int = 8) -> dict[tuple[int, int], float]:
    pairs = [pair for batch in counts.batches(3, seed=0, epoch=0) for pair in batch.tolist()]
    assert len(pairs) == len({key for key, _ in pairs}) == counts.pairs
    return {divmod(key, size): value for key, value in pairs}


def test_counts_by_hand(tmp_path: Path):
    """a b c a, then b b: an unknown word between b and c is left out, and a sentence ends after a.

    Window 2: a-b at distance 1 and (b, a) at 2; a-c at 2 and 1; b-c at 1; b-b at 1, in both
    directions. The two a are 3 apart.
    """
    counts = as_dict(count([A, B, UNKNOWN, C, A, END, B, B], tmp_path, window=2))
    expected = {(A, B): 1.5, (A, C): 1.5, (B, C): 1.0}
    expected |= {(j, i): value for (i, j), value in expected.items()} | {(B, B): 2.0}
    assert counts == expected


def test_counts_do_not_depend_on_the_memory(tmp_path: Path):
    """Many sorted runs on disk, merged, give the sums of a double loop over all positions."""
    tokens = np.random.default_rng(0).integers(3, 40, 800)
    counts = count(tokens, tmp_path, window=3, memory_mb=0.005)
    sums: dict[tuple[int, int], float] = {}
    sentences = [s[s > 4].tolist() for s in np.split(tokens, np.flatnonzero(tokens == END))]
    for sentence in sentences:
        for i, word in enumerate(sentence):
            for j in range(max(0, i - 3), min(len(sentence), i + 4)):
                if i != j:
                    key = word, sentence[j]
                    sums[key] = sums.get(key, 0.0) + 1 / abs(i - j)
    assert counts.runs > 16 and len(counts.buckets) > 3, "merged in several passes"
    assert as_dict(counts, 40) == pytest.approx(sums)
    assert list(tmp_path.iterdir()) == [], "its files have no names"


def test_batches_go_on_from_any_position(tmp_path: Path):
    counts = count(np.random.default_rng(0).integers(3, 40, 900), tmp_path, window=2, memory_mb=0.1)
    epoch = [batch.tolist() for batch in counts.batches(10, seed=1, epoch=2)]
    assert len(epoch) == counts.batches_per_epoch(10) > 20
    for start in (0, 1, 13, len(epoch)):
        rest = [batch.tolist() for batch in counts.batches(10, seed=1, epoch=2, start=start)]
        assert rest == epoch[start:]
    assert epoch != [batch.tolist() for batch in counts.batches(10, seed=1, epoch=3)]


def build(vocabulary: Vocabulary, **settings) -> GloVe:
    module = system_module("glove")
    torch.manual_seed(0)
    return module.build(module.Config(**settings), vocabulary).double()


@torch.no_grad()
def test_loss_and_step_by_hand():
    """Width 1, x_max 4, α ½; X_ab = 4 and X_ac = 1, so f is 1 and ½.

    w_a = 2, b_a = ½; w̃_b = 1, b̃_b = 0; w̃_c = -1, b̃_c = 1.
    Errors: 2 + ½ - ln 4 and -2 + ½ + 1 - 0 = -½. Gradients of J/2: f · error · (the other vector).
    """
    system = build(VOCABULARY, width=1, x_max=4.0, alpha=0.5)
    for parameter in system.parameters():
        parameter.zero_()
    system.words[A], system.word_bias[A] = 2.0, 0.5
    system.contexts[B], system.contexts[C], system.context_bias[C] = 1.0, -1.0, 1.0
    pairs = torch.tensor([A, A]), torch.tensor([B, C]), torch.tensor([4.0, 1.0]).double()
    first, second = 2.5 - math.log(4), -0.5
    loss = first**2 + 0.5 * second**2
    assert system.least_squares_loss(*pairs).item() == pytest.approx(loss)
    assert AdaGrad(system).step(*pairs, rate=0.1) == pytest.approx(loss)

    def moved(start: float, gradient: float) -> float:
        return start - 0.1 * gradient / math.sqrt(1 + gradient**2)

    # The word a is in both pairs: its gradients are summed before the step.
    assert system.words[A].item() == pytest.approx(moved(2.0, first * 1 + 0.5 * second * -1))
    assert system.word_bias[A].item() == pytest.approx(moved(0.5, first + 0.5 * second))
    assert system.contexts[B].item() == pytest.approx(moved(1.0, first * 2))
    assert system.contexts[C].item() == pytest.approx(moved(-1.0, 0.5 * second * 2))
    assert system.context_bias[C].item() == pytest.approx(moved(1.0, 0.5 * second))
    assert system.vectors()[A].item() == pytest.approx(system.words[A].item())


def alternating_least_squares(
    counts: NDArray[np.float64], width: int, *, x_max: float, alpha: float, seed: int
) -> float:
    """The minimum of J by solving for all words, then all contexts, in turn."""
    observed = counts > 0
    weights = np.where(observed, np.minimum(1, (counts / x_max) ** alpha), 0)
    logs = np.log(np.where(observed, counts, 1))
    generator = np.random.default_rng(seed)
    sides = [generator.normal(size=(len(counts), width + 1)) for _ in range(2)]

    def solve(fixed: NDArray[np.float64], weight: NDArray[np.float64], log: NDArray[np.float64]):
        design = np.concatenate([fixed[:, :width], np.ones((len(fixed), 1))], 1)
        rows = []
        for row, target in zip(np.sqrt(weight), log - fixed[:, width], strict=True):
            rows.append(np.linalg.lstsq(design * row[:, None], target * row, rcond=None)[0])
        return np.array(rows)

    for _ in range(400):
        sides[0] = solve(sides[1], weights, logs)
        sides[1] = solve(sides[0], weights.T, logs.T)
    (words, contexts) = sides
    fit = words[:, :width] @ contexts[:, :width].T + words[:, width:] + contexts[:, width]
    return float((weights * (fit - logs) ** 2).sum())


def test_minimum_equals_alternating_least_squares(tmp_path: Path):
    """Our training of nine words at width 2 against the best of four of its runs."""
    tokens = 5 + np.random.default_rng(1).geometric(0.3, 300).clip(max=9) - 1
    settings = {"width": 2, "x_max": 20.0, "alpha": 0.75}
    [batch] = count(tokens, tmp_path, window=2).batches(10**6, seed=0, epoch=0)
    matrix = np.zeros((14, 14))
    matrix[np.divmod(batch["key"], 14)] = batch["count"]
    expected = min(
        alternating_least_squares(matrix[5:, 5:], 2, x_max=20.0, alpha=0.75, seed=seed)
        for seed in range(4)
    )
    words, contexts = (torch.from_numpy(part) for part in np.divmod(batch["key"], 14))
    pairs = words, contexts, torch.from_numpy(batch["count"].copy())
    optimizer = AdaGrad(build(Vocabulary(size=14), **settings))
    start = optimizer.step(*pairs, rate=0.5)
    for _ in range(3000):
        loss = optimizer.step(*pairs, rate=0.5)
    assert 0 < expected < start / 10
    assert loss == pytest.approx(expected, rel=1e-3)
