"""Gradients by distance and by parameter against analytic values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.inspection.gradient_flow import measure_gradient_by_distance, measure_parameter_gradients

VOCABULARY = Vocabulary(size=12)


def build(name: str, **settings: object) -> System:
    module = system_module(name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return module.build(module.Config(**settings), VOCABULARY)


def sentences(*lengths: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    rows = [
        [2, *torch.randint(5, 12, (length - 2,), generator=generator).tolist(), 3]
        for length in lengths
    ]
    return Batch.collate(rows, 0)


@pytest.mark.parametrize("radius", [0.5, 1.0, 1.5])
def test_linear_rnn_gradient_scales_by_its_spectral_radius(radius: float) -> None:
    """U is radius · orthogonal and the input weights are the identity: ‖Uᵈ g‖ = radiusᵈ ‖g‖."""
    system = build("rnn", width=6, dropout=0.0, activation="linear", radius=radius)
    with torch.no_grad():
        system.get_parameter("backbone.stack.blocks.0.mixer.from_input.weight").copy_(torch.eye(6))
    gradient = measure_gradient_by_distance(system, [sentences(9, 9, 9)])
    assert gradient.distances == tuple(range(1, 9))
    assert gradient.sentences == (3,) * 8
    for distance, norm in zip(gradient.distances, gradient.norms, strict=True):
        assert norm == pytest.approx(gradient.norms[0] * radius ** (distance - 1), rel=1e-4)
    assert gradient.factor == pytest.approx(radius, rel=1e-4)


def test_gradient_mean_is_over_sentences_long_enough() -> None:
    system = build("lstm", width=6, dropout=0.0)
    together = measure_gradient_by_distance(system, [sentences(3, 6)])
    assert together.sentences == (2, 2, 1, 1, 1)
    batch = sentences(3, 6)
    short = measure_gradient_by_distance(system, [batch.select([0])])
    long = measure_gradient_by_distance(system, [batch.select([1])])
    assert together.norms[0] == pytest.approx((short.norms[0] + long.norms[0]) / 2, rel=1e-4)
    assert together.norms[4] == pytest.approx(long.norms[4], rel=1e-4)


def test_window_gradient_reaches_its_window_size() -> None:
    """logits = E h + b with h = Σ_j W_j e_j: the gradient for word j is W_jᵀ Eᵀ (p - onehot)."""
    system = build("window", width=6, size=3, dropout=0.0)
    batch = sentences(7)
    gradient = measure_gradient_by_distance(system, [batch])
    assert gradient.max_reach == 3
    assert gradient.norms[3:] == (0.0, 0.0, 0.0)
    with torch.no_grad():
        embedding = system.get_parameter("backbone.embedding.weight")
        mix = system.get_parameter("backbone.mix.weight")
        words = embedding[batch.tokens[0, 3:6]].flatten()
        scores = embedding @ (mix @ words) + system.get_parameter("emission.bias")
        scores[list(VOCABULARY.unpredictable)] = float("-inf")
        error = torch.softmax(scores, 0)
        error[3] -= 1
        by_word = (error @ embedding @ mix).view(3, 6).norm(dim=1).flip(0)
    assert gradient.norms[:3] == pytest.approx(by_word.tolist(), rel=1e-4)


def test_max_distance_is_respected_and_system_unchanged() -> None:
    system = build("gru", width=6, dropout=0.5).train()
    before = {name: tensor.clone() for name, tensor in system.state_dict().items()}
    gradient = measure_gradient_by_distance(system, [sentences(9)], max_distance=4)
    assert gradient.distances == (1, 2, 3, 4)
    assert system.training
    assert all(parameter.grad is None for parameter in system.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in system.state_dict().items())


def test_system_without_token_embeddings_is_refused() -> None:
    with pytest.raises(UserError, match="token embeddings per position"):
        measure_gradient_by_distance(build("independent", states=2), [sentences(5)])


def test_system_without_per_token_scores_is_refused() -> None:
    """DPR encodes both sides, and has no loss at a document's last position."""
    system = build("dpr", width=8, layers=1, heads=2, vector_width=4, dropout=0.0)
    system.setup_data(np.array([2, 5, 6, 3, 2, 7, 3]), np.array([0, 4, 7]))  # two to choose from
    batch = replace(sentences(6, 5, 4), condition=sentences(4, 5, 6))
    assert system.loss(batch)[0].total.requires_grad
    with pytest.raises(UserError, match="and a score per token"):
        measure_gradient_by_distance(system, [batch])


def test_parameter_gradients_equal_those_of_the_mean_loss() -> None:
    system = build("rnn", width=6, dropout=0.5)
    first, second = sentences(4, 6), sentences(5)
    gradients = measure_parameter_gradients(system, [first, second])
    system.eval()
    total = system.loss(first)[0].total + system.loss(second)[0].total
    (total / (first.count + second.count)).backward()
    for name, parameter in system.named_parameters():
        assert parameter.grad is not None
        assert gradients[name].norm == pytest.approx(float(parameter.grad.norm()), rel=1e-4)
        assert gradients[name].weights == pytest.approx(float(parameter.detach().norm()), rel=1e-5)
        root = float(parameter.grad.square().mean().sqrt())
        assert gradients[name].root_mean_square == pytest.approx(root, rel=1e-4)


def test_unused_parameter_has_zero_gradient() -> None:
    system = build("rnn", width=6, dropout=0.0)
    system.register_parameter("idle", torch.nn.Parameter(torch.ones(3)))
    assert measure_parameter_gradients(system, [sentences(5)])["idle"].norm == 0.0
