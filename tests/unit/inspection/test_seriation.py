"""Seriation: orders of states and units, and stationary states."""

from __future__ import annotations

import numpy as np

from lmlab.inspection.seriation import (
    order_by_centroid,
    order_by_principal_component,
    order_by_size,
    order_by_transitions,
    stationary_states,
)


def test_seriation_orders() -> None:
    assert order_by_size(np.array([0.2, 0.5, 0.2, 0.1])).tolist() == [1, 0, 2, 3]
    late_early = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert order_by_centroid(late_early).tolist() == [1, 2, 0]
    rows = np.array([[0.0, 1.0], [1.0, 0.0], [0.1, 0.9], [0.9, 0.1]])
    order = order_by_principal_component(rows).tolist()
    assert order in ([0, 2, 3, 1], [1, 3, 2, 0])
    assert order_by_transitions(np.ones((2, 2)) / 2).tolist() == [0, 1]


def test_stationary_states_of_a_markov_chain() -> None:
    """From any state to 2, from 2 to 0: the stationary distribution is half each."""
    chain = np.zeros((4, 4))
    chain[:, 2] = 1.0
    chain[2] = (1.0, 0.0, 0.0, 0.0)
    assert stationary_states(chain, 2).tolist() == [0, 2]
