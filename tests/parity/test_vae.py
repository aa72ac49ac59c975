"""Latent-variable models against the integral over their latent, taken by quadrature or by sums.

At one latent number log p(s) = log ∫ N(z; 0, 1) p(s | z) dz is taken by the trapezoid rule, which
for smooth functions that die out at both ends converges exponentially; with bits it is a sum over
all of them. Both ask the system only for p(s | z).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.registry import catalogue, system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.latent_variable import VariationalAutoencoder
from lmlab.training.system_building import build_system, build_tiny

VOCABULARY = Vocabulary(size=7)
START, END, A, B = 2, 3, 5, 6
SENTENCES = [[START, A, B, B, END], [START, B, END], [START, A, A, A, A, B, END], [START, END]]
SYSTEMS = [name for name, card in catalogue().items() if card.objectives == ("elbo",)]


def tiny(name: str, seed: int = 0, **changes) -> VariationalAutoencoder:
    """A tiny system with weights large enough that the latent matters much."""
    card, settings = catalogue()[name], system_module(name).SIZES["tiny"]
    base = build_tiny(card.base, VOCABULARY, seed=seed) if card.base else None
    config = vars(replace(settings, **changes))
    system = build_system(name, config, VOCABULARY, seed=seed, base=base)
    assert isinstance(system, VariationalAutoencoder)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in system.parameters():
            parameter.add_(0.4 * torch.randn(parameter.shape, generator=generator))
    return system.double().eval()


def batch_of(sentences: list[list[int]]) -> Batch:
    return Batch.collate(sentences, pad=VOCABULARY.pad)


@pytest.fixture(autouse=True)
def double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def trapezoid(points: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes from -9 to 9 and their weights under N(0, 1); beyond there is 1e-19 of its mass."""
    nodes = np.linspace(-9, 9, points)
    return nodes, np.exp(-0.5 * nodes**2) / math.sqrt(2 * math.pi) * (nodes[1] - nodes[0])


@torch.no_grad()
def log_prob_given(system: VariationalAutoencoder, batch: Batch, latents: np.ndarray) -> np.ndarray:
    """(points, rows) log p(s | z) for latents (points, rows)."""
    points, rows = latents.shape
    repeated = batch.select(list(range(rows)) * points)
    given = system.given(torch.tensor(latents).reshape(-1, 1))
    return given.log_prob(repeated).totals.numpy().reshape(points, rows)


def by_quadrature(system: VariationalAutoencoder, batch: Batch, points: int = 400) -> np.ndarray:
    """log ∫ N(z; 0, 1) p(s | z) dz for each row."""
    nodes, weights = trapezoid(points)
    latents = np.repeat(nodes[:, None], len(batch), axis=1)
    return np.logaddexp.reduce(log_prob_given(system, batch, latents) + np.log(weights)[:, None])


@torch.no_grad()
def scored(
    system: VariationalAutoencoder, batch: Batch, bound: str, samples: int, seed: int = 0
) -> np.ndarray:
    system.objective.bound, system.objective.samples = bound, samples
    generator = torch.Generator().manual_seed(seed)
    return system.log_prob(batch, generator=generator).totals.numpy()


@pytest.mark.parametrize(
    ("name", "posterior"), [*((name, "gaussian") for name in SYSTEMS), ("gru-vae", "full-gaussian")]
)
def test_elbo_below_importance_bound_below_exact(name: str, posterior: str):
    """On average over seeds, the more points the tighter (Burda et al. 2016, theorem 1)."""
    batch, seeds = batch_of(SENTENCES), range(60)
    system = tiny(name, latent=1, posterior=posterior)
    exact = by_quadrature(system, batch)
    # The quadrature itself has converged.
    np.testing.assert_allclose(by_quadrature(system, batch, 700), exact, atol=1e-9)
    ladder = [
        np.stack([scored(system, batch, "importance", count, seed) for seed in seeds])
        for count in (1, 4, 32)
    ]
    elbo = np.broadcast_to(scored(system, batch, "elbo", 4096), (len(seeds), len(batch)))
    # One point is the ELBO itself; each rung is above the one before and below the exact value.
    assert (np.abs(error_in_mean(ladder[0] - elbo)) < 4).all()
    for lower, upper in itertools.pairwise([*ladder, np.broadcast_to(exact, elbo.shape)]):
        assert (error_in_mean(upper - lower) > -4).all()
    assert (elbo < exact).all()
    assert (ladder[2].mean(0) > elbo[0]).all()


def error_in_mean(differences: np.ndarray) -> np.ndarray:
    """The mean over the first axis in units of its standard error."""
    error = differences.std(0, ddof=1) / math.sqrt(len(differences))
    return differences.mean(0) / np.maximum(error, 1e-9)


@pytest.mark.parametrize("name", SYSTEMS)
def test_importance_bound_converges_to_the_integral(name: str):
    """With a posterior wider than the prior, whose weights are bounded, 4,096 points suffice."""
    batch, system = batch_of(SENTENCES), tiny(name, latent=1)
    with torch.no_grad():
        system.objective.to_posterior.weight.zero_()
        system.objective.to_posterior.bias.copy_(torch.tensor([0.2, 0.5]))
    result = scored(system, batch, "importance", 4096)
    np.testing.assert_allclose(result, by_quadrature(system, batch), atol=2e-3)
    assert (scored(system, batch, "elbo", 4096) < result).all()


@pytest.mark.parametrize("name", SYSTEMS)
def test_elbo_gap_is_the_posterior_kl_divergence(name: str):
    """log p - ELBO = KL(q(z|s) || p(z|s)): the gap by quadrature over z, term by term."""
    batch, system = batch_of(SENTENCES[:2]), tiny(name, latent=1)
    exact = by_quadrature(system, batch)
    with torch.no_grad():
        posterior = system.objective.posterior(batch)
    mean, spread = posterior.mean.numpy()[:, 0], posterior.std.numpy()[:, 0]
    nodes, weights = trapezoid(400)
    z = mean + spread * nodes[:, None]
    log_joint = log_prob_given(system, batch, z) - 0.5 * z**2
    log_q = -0.5 * nodes[:, None] ** 2 - np.log(spread)
    gap = (weights[:, None] * (log_q - (log_joint - exact))).sum(0)
    assert (gap > 1e-3).all()
    np.testing.assert_allclose(scored(system, batch, "elbo", 4096), exact - gap, atol=2e-3)


@pytest.mark.parametrize("bits", [1, 3])
def test_bernoulli_importance_bound_converges_to_the_sum(bits: int):
    """p(s) = 2^-L Σ_z p(s | z); the importance-weighted bound tends to it, the ELBO is below."""
    batch, system = batch_of(SENTENCES), tiny("gru-vae", latent=bits, posterior="bernoulli")
    rows = []
    with torch.no_grad():
        for latent in itertools.product([0.0, 1.0], repeat=bits):
            totals = system.given(torch.tensor([latent])).log_prob(batch).totals.numpy()
            rows.append(totals - bits * math.log(2))
    exact = np.logaddexp.reduce(np.stack(rows))
    elbo = scored(system, batch, "elbo", 4096)
    np.testing.assert_allclose(scored(system, batch, "importance", 4096), exact, atol=0.02)
    # Of 4,096 even points the share with a bit set is its probability to 1 / 4,096.
    assert (elbo < exact + bits * np.ptp(np.stack(rows), axis=0) / 4096).all()
    assert (elbo < exact - 1e-3).any()


def test_bernoulli_elbo_equals_enumeration():
    """Σ_z q(z) log p(s | z) - KL, with q and the KL from the log-odds by arithmetic."""
    batch, system = batch_of(SENTENCES), tiny("gru-vae", latent=2, posterior="bernoulli")
    with torch.no_grad():
        probability = system.objective.posterior(batch).mean.numpy()
        expected = np.zeros(len(SENTENCES))
        for latent in itertools.product([0, 1], repeat=2):
            q = np.prod(np.where(np.array(latent), probability, 1 - probability), axis=1)
            given = system.given(torch.tensor([latent], dtype=torch.float64))
            log_p = given.log_prob(batch).totals.numpy() - 2 * math.log(2)
            expected += q * (log_p - np.log(q))
    np.testing.assert_allclose(scored(system, batch, "elbo", 16384), expected, atol=2e-3)


@pytest.mark.parametrize("name", SYSTEMS)
def test_exact_probabilities_sum_to_one(name: str):
    """Complete ones of at most 3 tokens and unfinished ones of 3: a distribution."""
    inner = [1, A, B]
    complete = [
        [START, *body, END] for n in range(3) for body in itertools.product(inner, repeat=n)
    ]
    unfinished = [[START, *body] for body in itertools.product(inner, repeat=3)]
    system = tiny(name, latent=1)
    mass = sum(
        np.exp(by_quadrature(system, batch_of(part))).sum() for part in (complete, unfinished)
    )
    assert mass == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("name", SYSTEMS)
def test_samples_follow_the_integral(name: str):
    """Frequencies of 4,000 samples against p(s) by quadrature: Pearson's statistic, p > 1e-6."""
    inner, sample_count = [1, A, B], 4000
    outcomes = [(*body, END) for n in range(2) for body in itertools.product(inner, repeat=n)]
    outcomes += [tuple(body) for body in itertools.product(inner, repeat=2)]
    system = tiny(name, latent=1)
    sequences = [[START, *body] for body in outcomes]
    expected = sample_count * np.exp(
        np.concatenate([by_quadrature(system, batch_of([each])) for each in sequences])
    )
    assert expected.sum() == pytest.approx(sample_count, abs=1e-6)
    generator = torch.Generator().manual_seed(0)
    counts = dict.fromkeys(outcomes, 0)
    for ids in system.sample(sample_count, max_length=2, generator=generator):
        counts[tuple(ids)] += 1
    observed = np.array(list(counts.values()), float)
    statistic = ((observed - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(outcomes) - 1) / 2)
    assert torch.special.gammaincc(freedom, torch.tensor(statistic / 2)).item() > 1e-6


def test_annealing_and_free_bits_weight_the_kl():
    """loss = reconstruction + β Σ_j max(KL_j, free bits), β = step / anneal_steps up to 1."""
    batch = batch_of(SENTENCES)
    system = tiny("gru-vae", latent=2, anneal_steps=10, free_bits=0.5)
    with torch.no_grad():
        posterior = system.objective.posterior(batch)
    mean, spread = posterior.mean.numpy(), posterior.std.numpy()
    divergence = 0.5 * (spread**2 + mean**2 - 1 - np.log(spread**2))
    assert (divergence < 0.5).any()
    assert (divergence > 0.5).any()
    kl_cost = np.maximum(divergence, 0.5).sum()
    for step, weight in ((0, 0.0), (5, 0.5), (10, 1.0), (25, 1.0)):
        system.begin_step(step)
        loss, _ = system.loss(batch, generator=torch.Generator().manual_seed(3))
        reconstruction = loss.parts["reconstruction"].total.item()
        assert loss.total.item() == pytest.approx(reconstruction + weight * kl_cost)
        assert loss.count.item() == batch.count


def test_decoder_by_hand():
    """h_0 = A z + a, h_t = tanh(W x_t + b + U h_{t-1} + c), a mixture on the sphere, in numpy."""
    system = tiny("rnn-vae", latent=3)
    weights = {name: value.detach().numpy() for name, value in system.named_parameters()}
    latent, sentence = np.array([0.3, -1.2, 0.7]), SENTENCES[0]

    def unit(rows: np.ndarray) -> np.ndarray:
        return rows / np.linalg.norm(rows, axis=-1, keepdims=True)

    def log_softmax(scores: np.ndarray, axis: int) -> np.ndarray:
        return scores - np.logaddexp.reduce(scores, axis=axis, keepdims=True)

    backbone, emission = "backbone.", "emission."
    embedding = weights[backbone + "embedding.weight"]
    inputs = unit(embedding) * math.sqrt(embedding.shape[1])
    cell = {n: weights[f"{backbone}cell.fused.{n}_l0"] for n in ("weight_ih", "weight_hh")}
    bias = sum(weights[f"{backbone}cell.fused.{n}_l0"] for n in ("bias_ih", "bias_hh"))
    linear = backbone + "from_latent.linear."
    hidden = weights[linear + "weight"] @ latent + weights[linear + "bias"]
    states = unit(weights[emission + "states.vectors"])
    scales = np.exp(weights[emission + "states.log_scales"])
    scores = unit(weights[emission + "states.weight"]) @ (states * scales[:, None]).T
    scores[[0, 2, 4]] = -np.inf
    table = log_softmax(scores, 0)
    expected = []
    for token, target in itertools.pairwise(sentence):
        hidden = np.tanh(cell["weight_ih"] @ inputs[token] + cell["weight_hh"] @ hidden + bias)
        choice = weights[emission + "choose.weight"] @ hidden + weights[emission + "choose.bias"]
        expected.append(np.logaddexp.reduce(log_softmax(choice, 0) + table[target]))
    actual = system.given(torch.tensor(latent)[None]).log_prob(batch_of([sentence]))
    np.testing.assert_allclose(actual.per_token[0].detach().numpy(), expected, atol=1e-10)
