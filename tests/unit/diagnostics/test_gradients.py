"""Gradients by distance and by layer against what arithmetic says."""

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


def built(name: str, **settings: object) -> System:
    module = system_module(name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return module.build(module.Config(**settings), VOCABULARY)


def sentences(*lengths: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    made = [
        [2, *torch.randint(5, 12, (length - 2,), generator=generator).tolist(), 3]
        for length in lengths
    ]
    return Batch.collate(made, 0)


@pytest.mark.parametrize("radius", [0.5, 1.0, 1.5])
def test_a_linear_recurrence_multiplies_by_its_radius(radius: float) -> None:
    """U is orthogonal times the radius and the input goes in as it is: ‖Uᵈ g‖ = radiusᵈ ‖g‖."""
    system = built("rnn", width=6, dropout=0.0, activation="linear", radius=radius)
    with torch.no_grad():
        system.get_parameter("backbone.cells.0.from_input.weight").copy_(torch.eye(6))
    found = measure_gradient_by_distance(system, [sentences(9, 9, 9)])
    assert found.distances == tuple(range(1, 9))
    assert found.sentences == (3,) * 8
    for distance, norm in zip(found.distances, found.norms, strict=True):
        assert norm == pytest.approx(found.norms[0] * radius ** (distance - 1), rel=1e-4)
    assert found.factor == pytest.approx(radius, rel=1e-4)


def test_sentences_of_other_lengths_count_where_they_reach() -> None:
    system = built("lstm", width=6, dropout=0.0)
    together = measure_gradient_by_distance(system, [sentences(3, 6)])
    assert together.sentences == (2, 2, 1, 1, 1)
    batch = sentences(3, 6)
    short = measure_gradient_by_distance(system, [batch.select([0])])
    long = measure_gradient_by_distance(system, [batch.select([1])])
    assert together.norms[0] == pytest.approx((short.norms[0] + long.norms[0]) / 2, rel=1e-4)
    assert together.norms[4] == pytest.approx(long.norms[4], rel=1e-4)


def test_a_window_reaches_as_far_as_it_is_wide() -> None:
    """logits = E h + b with h = Σ_j W_j e_j: the gradient for word j is W_jᵀ Eᵀ (p - onehot)."""
    system = built("window", width=6, size=3, dropout=0.0)
    batch = sentences(7)
    found = measure_gradient_by_distance(system, [batch])
    assert found.max_reach == 3
    assert found.norms[3:] == (0.0, 0.0, 0.0)
    with torch.no_grad():
        embedding = system.get_parameter("backbone.embedding.weight")
        mix = system.get_parameter("backbone.mix.weight")
        words = embedding[batch.tokens[0, 3:6]].flatten()
        scores = embedding @ (mix @ words) + system.get_parameter("emission.bias")
        scores[list(VOCABULARY.unpredictable)] = float("-inf")
        error = torch.softmax(scores, 0)
        error[3] -= 1
        by_word = (error @ embedding @ mix).view(3, 6).norm(dim=1).flip(0)
    assert found.norms[:3] == pytest.approx(by_word.tolist(), rel=1e-4)


def test_distance_is_limited_and_the_system_left_as_it_was() -> None:
    system = built("gru", width=6, dropout=0.5).train()
    before = {name: tensor.clone() for name, tensor in system.state_dict().items()}
    found = measure_gradient_by_distance(system, [sentences(9)], most=4)
    assert found.distances == (1, 2, 3, 4)
    assert system.training
    assert all(parameter.grad is None for parameter in system.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in system.state_dict().items())


def test_a_system_without_embeddings_is_refused() -> None:
    with pytest.raises(UserError, match="token embeddings per position"):
        measure_gradient_by_distance(built("independent", states=2), [sentences(5)])


def test_a_system_that_scores_texts_as_a_whole_is_refused() -> None:
    """DPR reads both sides place by place, and loses nothing at a document's last one."""
    system = built("dpr", width=8, layers=1, heads=2, vector_width=4, dropout=0.0)
    system.setup_data(np.array([2, 5, 6, 3, 2, 7, 3]), np.array([0, 4, 7]))  # two to choose from
    batch = replace(sentences(6, 5, 4), condition=sentences(4, 5, 6))
    assert system.loss(batch)[0].total.requires_grad
    with pytest.raises(UserError, match="and a score per token"):
        measure_gradient_by_distance(system, [batch])


def test_by_layer_is_the_gradient_of_the_mean_loss() -> None:
    system = built("rnn", width=6, dropout=0.5)
    one, other = sentences(4, 6), sentences(5)
    found = measure_parameter_gradients(system, [one, other])
    system.eval()
    total = system.loss(one)[0].total + system.loss(other)[0].total
    (total / (one.count + other.count)).backward()
    for name, parameter in system.named_parameters():
        assert parameter.grad is not None
        assert found[name].norm == pytest.approx(float(parameter.grad.norm()), rel=1e-4)
        assert found[name].weights == pytest.approx(float(parameter.detach().norm()), rel=1e-5)
        root = float(parameter.grad.square().mean().sqrt())
        assert found[name].root_mean_square == pytest.approx(root, rel=1e-4)


def test_a_tensor_that_the_loss_does_not_see_has_none() -> None:
    system = built("rnn", width=6, dropout=0.0)
    system.register_parameter("idle", torch.nn.Parameter(torch.ones(3)))
    assert measure_parameter_gradients(system, [sentences(5)])["idle"].norm == 0.0
