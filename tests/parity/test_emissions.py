"""Emissions against their formulas in plain loops, and the rank that each can reach."""

from __future__ import annotations

from math import exp, log, sqrt, tanh

import pytest
import torch
from torch import nn

from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.hamming import Hamming
from lmlab.zoo._emissions import EMISSIONS, build_emission

WIDTH, STATES, PARTS = 6, 3, 2
VOCABULARY = Vocabulary(size=12)
PREDICTED = [i for i in range(12) if i not in (0, 2, 4)]  # no <pad>, <s>, <mask>
Vector = list[float]


def make(name: str, *, tied: nn.Embedding | None = None):
    """A fresh emission whose every parameter has moved from its start."""
    torch.manual_seed(0)
    emission = build_emission(
        name, WIDTH, VOCABULARY, tied=tied, states=STATES, dropout=0.0, parts=PARTS
    )
    with torch.no_grad():
        for parameter in emission.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return emission.eval()


def some_hidden(count: int = 4) -> torch.Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(1))


def raw(emission, name: str):
    return emission.get_parameter(name).tolist()


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def softmax(scores: Vector) -> Vector:
    total = sum(exp(score) for score in scores)
    return [exp(score) / total for score in scores]


def linear(emission, name: str, h: Vector) -> Vector:
    weight, bias = raw(emission, f"{name}.weight"), raw(emission, f"{name}.bias")
    return [dot(row, h) + b for row, b in zip(weight, bias, strict=True)]


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def unit(v: Vector) -> Vector:
    return [x / sqrt(dot(v, v)) for x in v]


def by_softmax(emission, h: Vector) -> Vector:
    e, b = raw(emission, "weight"), raw(emission, "bias")
    return softmax([dot(e[k], h) + b[k] for k in PREDICTED])


def by_sphere(emission, h: Vector) -> Vector:
    e, scale = raw(emission, "weight"), exp(raw(emission, "log_scale"))
    return softmax([scale * dot(unit(e[k]), unit(h)) for k in PREDICTED])


def by_mixture(emission, h: Vector) -> Vector:
    e, v = raw(emission, "states.weight"), raw(emission, "states.vectors")
    total = [0.0] * len(PREDICTED)
    for weight, vector in zip(softmax(linear(emission, "choose", h)), v, strict=True):
        for position, p in enumerate(softmax([dot(e[k], vector) for k in PREDICTED])):
            total[position] += weight * p
    return total


def by_sphere_mixture(emission, h: Vector) -> Vector:
    e, v = raw(emission, "states.weight"), raw(emission, "states.vectors")
    scales = [exp(s) for s in raw(emission, "states.log_scales")]
    total = [0.0] * len(PREDICTED)
    for z, weight in enumerate(softmax(linear(emission, "choose", h))):
        scores = [scales[z] * dot(unit(e[k]), unit(v[z])) for k in PREDICTED]
        for position, p in enumerate(softmax(scores)):
            total[position] += weight * p
    return total


def by_mixture_of_softmaxes(emission, h: Vector) -> Vector:
    e, b = raw(emission, "softmax.weight"), raw(emission, "softmax.bias")
    views = [tanh(x) for x in linear(emission, "views", h)]
    total = [0.0] * len(PREDICTED)
    for m, weight in enumerate(softmax(linear(emission, "choose", h))):
        view = views[m * WIDTH : (m + 1) * WIDTH]
        for position, p in enumerate(softmax([dot(e[k], view) + b[k] for k in PREDICTED])):
            total[position] += weight * p
    return total


def agreements(emission, h: Vector, k: int) -> Vector:
    each, e = WIDTH // PARTS, raw(emission, "weight")[k]
    cuts = [slice(g * each, (g + 1) * each) for g in range(PARTS)]
    return [sigmoid(dot(h[cut], e[cut])) for cut in cuts]


def by_hamming(emission, h: Vector) -> Vector:
    scale, b = exp(raw(emission, "log_scale")), raw(emission, "bias")
    return softmax([scale * sum(agreements(emission, h, k)) + b[k] for k in PREDICTED])


def by_hamming_min(emission, h: Vector) -> Vector:
    scale, b = exp(raw(emission, "log_scale")), raw(emission, "bias")
    return softmax([scale * min(agreements(emission, h, k)) + b[k] for k in PREDICTED])


def by_rbf(emission, h: Vector) -> Vector:
    e, scale = raw(emission, "weight"), exp(raw(emission, "log_scale"))
    distances = [sum((x - y) ** 2 for x, y in zip(h, e[k], strict=True)) for k in PREDICTED]
    return softmax([-scale * distance for distance in distances])


FORMULAS = {
    "softmax": by_softmax,
    "sphere": by_sphere,
    "mixture": by_mixture,
    "sphere-mixture": by_sphere_mixture,
    "mixture-of-softmaxes": by_mixture_of_softmaxes,
    "hamming": by_hamming,
    "hamming-min": by_hamming_min,
    "rbf": by_rbf,
}


def test_every_emission_has_a_reference_formula():
    assert tuple(FORMULAS) == EMISSIONS


@pytest.mark.parametrize("name", EMISSIONS)
def test_distribution_equals_formula_and_sums_to_one(name):
    emission, hidden = make(name), some_hidden()
    log_probs = emission.log_probs(hidden)
    assert log_probs.exp().sum(-1).tolist() == pytest.approx([1.0] * 4, abs=1e-6)
    for row, h in zip(log_probs.tolist(), hidden.tolist(), strict=True):
        expected = [log(p) for p in FORMULAS[name](emission, h)]
        assert [row[k] for k in PREDICTED] == pytest.approx(expected, abs=1e-5)
        assert [row[k] for k in (0, 2, 4)] == [float("-inf")] * 3
    in_batches = emission.log_probs(hidden.view(2, 2, WIDTH))
    torch.testing.assert_close(in_batches.view(4, -1), log_probs)


@pytest.mark.parametrize("name", EMISSIONS)
def test_target_log_prob_equals_gathered_log_probs(name):
    """Values, gradients, pairs; and every parameter gets a gradient."""
    emission = make(name)
    hidden, targets = some_hidden().requires_grad_(), torch.tensor([3, 5, 11, 5])
    grads = []
    whole = emission.log_probs(hidden).gather(1, targets[:, None]).squeeze(1)
    for values in (emission.log_prob(hidden, targets), whole):
        torch.testing.assert_close(values, whole, atol=1e-5, rtol=1e-5)
        grads.append(torch.autograd.grad(values.sum(), [hidden, *emission.parameters()]))
    for fast, clear in zip(*grads, strict=True):
        torch.testing.assert_close(fast, clear, atol=1e-5, rtol=1e-4)
        assert fast.abs().sum() > 0
    sources = some_hidden(6).view(2, 3, WIDTH)
    pair_targets = torch.tensor([[3, 5], [11, 1]])
    pairs = emission.log_prob_by_source(sources, pair_targets)
    expected = emission.log_probs(sources)[:, None].expand(-1, 2, -1, -1)
    expected = expected.gather(3, pair_targets[..., None, None].expand(-1, -1, 3, 1)).squeeze(3)
    torch.testing.assert_close(pairs, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", EMISSIONS)
def test_tied_output_vectors_are_the_embedding(name):
    embedding = nn.Embedding(VOCABULARY.size, WIDTH)
    emission = make(name, tied=embedding)
    assert any(parameter is embedding.weight for parameter in emission.parameters())


def numerical_rank(name: str, width: int, *, biased: bool = False) -> int:
    """Rank of the log-probabilities of 40 tokens in 60 contexts, in double precision."""
    torch.manual_seed(0)
    emission = build_emission(
        name, width, Vocabulary(size=43), tied=None, states=8, dropout=0.0, parts=2
    ).double()
    if biased:
        nn.init.normal_(emission.get_parameter("bias"))
    log_probs = emission.log_probs(3 * torch.randn(60, width, dtype=torch.float64))
    values = torch.linalg.svdvals(log_probs[:, [1, 3, *range(5, 43)]])
    return int((values > 1e-9 * values[0]).sum())


def test_rank_of_a_softmax_is_bounded_by_the_width():
    """H Eᵀ has rank W, the normaliser of each context adds one, a bias of each token another."""
    width = 6
    assert numerical_rank("softmax", width) == width + 1
    assert numerical_rank("sphere", width) == width + 1
    assert numerical_rank("softmax", width, biased=True) == width + 2
    assert numerical_rank("rbf", width) == width + 2  # its bias is -β |e|²


@pytest.mark.parametrize("name", ["mixture-of-softmaxes", "hamming", "hamming-min", "mixture"])
def test_rank_exceeds_the_softmax_bottleneck(name):
    """Yang et al. 2018: the softmax bottleneck is lifted. 40 tokens allow a rank of 40."""
    assert numerical_rank(name, 6) == 40


def test_hamming_emission_by_hand():
    """Two parts of one number, β = 3: h = (ln 3, 0) agrees ¾ and ½ with e = (1, 1)."""
    emission = Hamming(2, 2, Vocabulary(size=6))
    with torch.no_grad():
        emission.weight.copy_(torch.tensor([[0.0, 0], [1, 1], [0, 0], [-1, 1], [0, 0], [0, 0]]))
        emission.log_scale.fill_(log(3))
    got = emission.log_probs(torch.tensor([[log(3), 0.0]]))[0].exp()
    # <unk> (1, 1): ¾ + ½; </s> (-1, 1): ¼ + ½; token 5 (0, 0): ½ + ½
    weights = [exp(3 * 1.25), exp(3 * 0.75), exp(3 * 1.0)]
    expected = [weight / sum(weights) for weight in weights]
    assert got[[1, 3, 5]].tolist() == pytest.approx(expected, abs=1e-6)


def test_indivisible_width_is_refused():
    with pytest.raises(UserError, match="parts must divide the width 6 and be at most 255, got 4"):
        Hamming(6, 4, VOCABULARY)


def test_unknown_emission_is_refused():
    with pytest.raises(UserError, match="did you mean 'softmax'"):
        build_emission("softmx", 4, VOCABULARY, tied=None, states=2, dropout=0.0)  # type: ignore[arg-type]
