"""Temperature, top-k and top-p filters on distributions small enough to check by hand."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.distribution import Categorical
from lmlab.sampling.decoding import Temperature, TopK, TopP, apply_filters, make_filters


def categorical(*probabilities: float) -> Categorical:
    return Categorical(torch.tensor([probabilities], dtype=torch.float64).log())


def probabilities(distribution: Categorical) -> list[float]:
    return distribution.log_probs.exp()[0].tolist()


def test_temperature_raises_probabilities_to_a_power():
    # 0.6² : 0.3² : 0.1² = 36 : 9 : 1, of 46.
    filtered = Temperature(0.5)(categorical(0.6, 0.3, 0.1, 0.0))
    assert probabilities(filtered) == pytest.approx([36 / 46, 9 / 46, 1 / 46, 0])


def test_tiny_temperature_is_greedy_and_finite():
    filtered = Temperature(1e-300)(categorical(0.3, 0.4, 0.3))
    assert probabilities(filtered) == [0, 1, 0]


def test_top_k_keeps_exactly_k():
    assert probabilities(TopK(2)(categorical(0.5, 0.1, 0.3, 0.1))) == pytest.approx(
        [0.5 / 0.8, 0, 0.3 / 0.8, 0]
    )
    # Of equals the first id stays.
    assert probabilities(TopK(2)(categorical(0.25, 0.25, 0.25, 0.25))) == pytest.approx(
        [0.5, 0.5, 0, 0]
    )
    whole = categorical(0.5, 0.5)
    assert probabilities(TopK(9)(whole)) == pytest.approx([0.5, 0.5])


def test_top_p_keeps_the_smallest_nucleus():
    given = categorical(0.1, 0.4, 0.3, 0.2)
    # 0.4 + 0.3 reaches 0.7 exactly: the third is not needed.
    assert probabilities(TopP(0.7)(given)) == pytest.approx([0, 4 / 7, 3 / 7, 0])
    assert probabilities(TopP(0.71)(given)) == pytest.approx([0, 4 / 9, 3 / 9, 2 / 9])
    assert probabilities(TopP(1e-9)(given)) == pytest.approx([0, 1, 0, 0])
    assert probabilities(TopP(1.0)(given)) == pytest.approx([0.1, 0.4, 0.3, 0.2])


def test_filters_apply_temperature_then_top_k_then_top_p():
    given = categorical(0.6, 0.3, 0.1)
    steps = make_filters(temperature=0.5, top_k=2, top_p=0.75)
    assert steps == (Temperature(0.5), TopK(2), TopP(0.75))
    # 36 : 9 after temperature and top-k, 0.8 and 0.2; the first alone reaches 0.75.
    assert probabilities(apply_filters(steps, given)) == pytest.approx([1, 0, 0])
    assert make_filters() == ()


def test_filters_do_not_modify_their_input():
    given = categorical(0.5, 0.3, 0.2)
    before = given.log_probs.clone()
    apply_filters(make_filters(temperature=2.0, top_k=1, top_p=0.5), given)
    assert torch.equal(given.log_probs, before)
