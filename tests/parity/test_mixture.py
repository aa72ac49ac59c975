"""Interpolation against arithmetic by hand, scipy, a grid, and probabilities mixed by numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import lmlab
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.inference.interpolation import fit_weights, interpolated_log_probs
from lmlab.models.mixture import InterpolatedLM
from lmlab.training.system_building import build_tiny

VOCABULARY = Vocabulary(size=12)


def test_weights_of_two_tokens_by_hand():
    # Maximise (1/4 + w/4) (4/10 - 3w/10): the derivative 1/40 - 6w/40 is zero at w = 1/6.
    fit = fit_weights(np.log([[0.5, 0.25], [0.1, 0.4]]), tolerance=1e-12)
    assert fit.weights == pytest.approx((1 / 6, 5 / 6), abs=1e-5)
    assert fit.nats_per_token == pytest.approx(-math.log(7 / 24 * 7 / 20) / 2)


def test_one_component_that_is_always_better_gets_all_the_weight():
    # The gap is then 1 / (w + (1 - w) / 2) - 1, which is below 1e-7 where 1 - w is below 2e-7.
    fit = fit_weights(np.log([[0.5, 0.25], [0.2, 0.1], [0.3, 0.15]]))
    assert fit.weights[0] > 1 - 3e-7 and fit.gap <= 1e-7


@pytest.mark.parametrize(("tokens", "components", "seed"), [(40, 2, 0), (60, 3, 1), (200, 5, 2)])
def test_weights_equal_scipys(tokens: int, components: int, seed: int):
    generator = np.random.default_rng(seed)
    log_probs = np.log(generator.dirichlet(np.ones(4), (tokens, components))[:, :, 0])

    def loss(weights: np.ndarray) -> float:
        return -float(np.log(np.exp(log_probs) @ weights).mean())

    best = minimize(
        loss,
        np.full(components, 1 / components),
        method="SLSQP",
        bounds=[(0, 1)] * components,
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    fit = fit_weights(log_probs)
    assert fit.nats_per_token == pytest.approx(best.fun, abs=2e-7)
    assert fit.nats_per_token <= best.fun + fit.gap + 1e-9, "the gap bounds what is left to gain"
    assert fit.weights == pytest.approx(best.x, abs=2e-3)
    assert fit == fit_weights(log_probs), "deterministic"


def test_weights_are_the_best_of_a_grid():
    log_probs = np.log(np.random.default_rng(3).dirichlet(np.ones(3), (30, 3))[:, :, 0])
    steps = range(101)
    grid = [(a / 100, b / 100, (100 - a - b) / 100) for a in steps for b in steps if a + b <= 100]
    losses = [-interpolated_log_probs(log_probs, np.array(w)).mean() for w in grid]
    fit = fit_weights(log_probs)
    assert fit.nats_per_token <= min(losses) + 1e-7
    assert fit.weights == pytest.approx(grid[int(np.argmin(losses))], abs=0.02)


def test_small_probabilities_do_not_underflow():
    fit = fit_weights(np.array([[-900.0, -900.7], [-2000.0, -1990.0]]))
    assert all(map(math.isfinite, (*fit.weights, fit.nats_per_token)))
    assert sum(fit.weights) == pytest.approx(1)


class Bigrams(torch.nn.Module):
    """log p(next | token) of a table: ids (B, T) to logits (B, T, V)."""

    def __init__(self, probabilities: torch.Tensor) -> None:
        super().__init__()
        self.table = torch.nn.Embedding.from_pretrained(probabilities.log())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.table(tokens)
        return scores


class Letters:
    """A tokenizer of the letters a and b, with ids after the special tokens."""

    vocab_size = 7

    def encode(self, text: str) -> list[int]:
        return [5 + "ab".index(letter) for letter in text.replace(" ", "")]

    def decode(self, ids: list[int]) -> str:
        return "".join("ab"[id - 5] for id in ids)


def test_jelinek_mercer_by_hand():
    """λ p(w | v) + (1 - λ) p(w), Jelinek and Mercer's interpolation of a bigram and a unigram."""
    a, b, end = 5, 6, 3
    unigram = torch.zeros(7, 7)
    unigram[:, [a, b, end]] = torch.tensor([0.5, 0.3, 0.2])
    bigram = torch.zeros(7, 7)
    bigram[:, [a, b, end]] = torch.tensor([0.2, 0.2, 0.6])
    bigram[a, [a, b, end]] = torch.tensor([0.1, 0.8, 0.1])
    models = [
        lmlab.wrap(Bigrams(table), Letters(), name=name, start=2, end=3, pad=0)
        for name, table in (("bigram", bigram), ("unigram", unigram))
    ]
    mixture = InterpolatedLM([model.system for model in models], [0.7, 0.3])
    bos = mixture.vocabulary.bos
    scored = mixture.log_prob(Batch.collate([[bos, a, b, end]], pad=0)).per_token[0]
    # From the start: 0.7 · 0.2 + 0.3 · 0.5; b after a: 0.7 · 0.8 + 0.3 · 0.3; end after b: 0.48.
    expected = [0.29, 0.65, 0.7 * 0.6 + 0.3 * 0.2]
    assert scored.exp().tolist() == pytest.approx(expected, rel=1e-5)
    state = mixture.advance(mixture.start(1), torch.tensor([a]))
    assert mixture.peek(state).log_probs[0, b].exp().item() == pytest.approx(0.65, rel=1e-5)


@pytest.fixture(scope="module")
def parts() -> list[torch.nn.Module]:
    """A Transformer with a window, a recurrent network and an n-gram model."""
    ngram = build_tiny("ngram", VOCABULARY)
    tokens = np.array([2, 5, 6, 7, 3, 2, 6, 6, 5, 3], dtype=np.int64)
    ngram.fit_counts(tokens, np.array([0, 5, 10], dtype=np.int64))
    return [build_tiny("gpt", VOCABULARY, seed=1), build_tiny("lstm", VOCABULARY, seed=2), ngram]


WEIGHTS = (0.2, 0.5, 0.3)


@torch.no_grad()
def test_probabilities_are_the_weighted_sums(parts):
    mixture = InterpolatedLM(parts, WEIGHTS).eval()
    batch = Batch.collate([[2, 5, 6, 7, 3], [2, 8, 3]], pad=0)
    expected = sum(
        weight * np.exp(part.eval().log_prob(batch).per_token.double().numpy())
        for weight, part in zip(WEIGHTS, parts, strict=True)
    )
    scored = mixture.log_prob(batch)
    inner = batch.targets_mask()[:, 1:]
    assert scored.per_token[inner].exp().tolist() == pytest.approx(
        expected[inner.numpy()].tolist(), rel=1e-4
    )
    assert scored.per_token[~inner].abs().sum() == 0, "nothing at padding"
    assert scored.kind == "exact"


@torch.no_grad()
def test_weight_zero_is_left_out_and_all_the_weight_is_the_component(parts):
    mixture = InterpolatedLM(parts, (0.0, 1.0, 0.0)).eval()
    batch = Batch.collate([[2, 5, 6, 7, 3]], pad=0)
    assert torch.equal(mixture.log_prob(batch).per_token, parts[1].eval().log_prob(batch).per_token)
    assert mixture.start(1).states[0] is None


@torch.no_grad()
def test_state_is_carried_if_every_component_carries_one(parts):
    mixture = InterpolatedLM(parts[1:], (0.5, 0.5)).eval()
    whole = mixture.log_prob(Batch.collate([[2, 5, 6, 7, 8, 6]], pad=0)).per_token
    first = mixture.log_prob(Batch.collate([[2, 5, 6]], pad=0))
    assert first.state is not None
    rest = mixture.log_prob(Batch.collate([[6, 7, 8, 6]], pad=0), state=first.state.detach())
    joined = torch.cat([first.per_token, rest.per_token], 1)
    assert torch.allclose(joined, whole, atol=1e-5)


def test_limits_are_those_of_the_components(parts):
    gpt, lstm, ngram = parts
    mixture = InterpolatedLM(parts, WEIGHTS)
    assert mixture.window == gpt.window and InterpolatedLM([lstm, ngram], (0.5, 0.5)).window is None
    assert mixture.max_generation_length(None) == gpt.window
    with pytest.raises(UserError, match="length="):
        mixture.check_length(gpt.window + 2)
    sizes = sum(p.numel() for part in (gpt, lstm) for p in part.parameters())
    assert mixture.parameter_count == sizes + ngram.parameter_count


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((0.5, 0.5), "as many as the models, 3"),
        ((0.5, 0.5, 0.5), "sum to 1, got 1.5"),
        ((1.5, -0.5, 0.0), "0 or more"),
        ((math.nan, 0.5, 0.5), "0 or more"),
    ],
)
def test_weights_that_are_no_distribution_are_refused(parts, weights, message):
    with pytest.raises(UserError, match=message):
        InterpolatedLM(parts, weights)
