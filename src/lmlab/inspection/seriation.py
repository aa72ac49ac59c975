"""Seriation (matrix reordering): by size, centroid, principal component, spectral order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Indices = NDArray[np.int64]


def order_by_size(values: Values) -> Indices:
    """Largest first; stable for ties."""
    return np.argsort(-values, kind="stable")


def order_by_centroid(values: Values) -> Indices:
    """Rows by the centroid of their mass along the columns."""
    mass = np.abs(np.nan_to_num(values))
    centres = (mass @ np.arange(values.shape[1])) / np.maximum(mass.sum(1), 1e-30)
    return np.argsort(centres, kind="stable")


def order_by_principal_component(values: Values) -> Indices:
    """Rows by their first principal component."""
    rows = np.nan_to_num(values)
    centred = rows - rows.mean(0)
    left_vectors, _, _ = np.linalg.svd(centred, full_matrices=False)
    return np.argsort(_signed(left_vectors[:, 0]), kind="stable")


def order_by_transitions(transitions: Values) -> Indices:
    """Spectral order of the states of a (K, K) transition matrix.

    By the second eigenvector of the normalised Laplacian of P + Pᵀ (Shi and Malik 2000), which
    separates groups with few transitions between them. Cost K³.
    """
    weights = np.nan_to_num(transitions) + np.nan_to_num(transitions).T
    degrees = np.maximum(weights.sum(1), 1e-30) ** -0.5
    _, vectors = np.linalg.eigh(degrees[:, None] * weights * degrees[None, :])
    if vectors.shape[1] < 3:
        return np.arange(len(weights), dtype=np.int64)
    return np.argsort(_signed(vectors[:, -2] * degrees), kind="stable")


def stationary_states(transitions: Values, count: int) -> Indices:
    """The states with the most stationary mass, by power iteration, in their old order."""
    rows = np.nan_to_num(transitions)
    chain = rows / np.maximum(rows.sum(1, keepdims=True), 1e-30)
    visits = np.full(len(chain), 1 / len(chain))
    for _ in range(50):
        # Smoothing lets a periodic chain converge.
        visits = 0.95 * (visits @ chain) + 0.05 / len(chain)
    return np.sort(order_by_size(visits)[:count])


def _signed(vector: Values) -> Values:
    """Fix an eigenvector's sign: the first sizeable entry is positive."""
    sizeable = np.flatnonzero(np.abs(vector) > 1e-6)
    rounded = np.round(vector, 9)
    return -rounded if sizeable.size and vector[sizeable[0]] < 0 else rounded
