"""Sobol points per row: uniform, evenly spaced, determined by its tokens and the seed."""

from __future__ import annotations

import numpy as np
import torch

from lmlab.inference.latent_distributions import seed_of, sobol_points

TOKENS = torch.tensor([[2, 5, 6, 3, 0], [2, 6, 5, 3, 0], [2, 5, 5, 5, 3]])
LENGTHS = torch.tensor([4, 4, 5])


def test_sobol_points_do_not_depend_on_the_batch():
    together = sobol_points(TOKENS, LENGTHS, count=3, dimensions=4)
    for row in range(3):
        length = int(LENGTHS[row])
        alone = sobol_points(
            TOKENS[row : row + 1, :length], LENGTHS[row : row + 1], count=3, dimensions=4
        )
        assert torch.equal(alone[:, 0], together[:, row])


def test_sobol_points_depend_on_tokens_length_and_seed():
    points = sobol_points(TOKENS, LENGTHS, count=1, dimensions=2)[0]
    other_seed = sobol_points(TOKENS, LENGTHS, count=1, dimensions=2, seed=1)[0]
    shorter = sobol_points(TOKENS[:1], torch.tensor([3]), count=1, dimensions=2)[0]
    rows = torch.cat([points, other_seed, shorter])
    assert len({tuple(row) for row in rows.tolist()}) == len(rows)


def test_first_points_are_uniform_and_uncorrelated_over_rows():
    """Of 20,000 rows: means ½ and variances 1/12 to 4 standard errors, correlations to 4/√n."""
    rows = 20_000
    tokens = torch.stack([torch.arange(rows) % 141, torch.arange(rows) // 141], 1)
    points = sobol_points(tokens, torch.full((rows,), 2), count=1, dimensions=3)[0].numpy()
    assert np.abs(points.mean(0) - 0.5).max() < 4 * np.sqrt(1 / 12 / rows)
    # The variance of (u - ½)² is 1/80 - 1/144 = 1/180.
    assert np.abs(points.var(0) - 1 / 12).max() < 4 * np.sqrt(1 / 180 / rows)
    correlations = np.corrcoef(points.T) - np.eye(3)
    assert np.abs(correlations).max() < 4 / np.sqrt(rows)
    neighbours = np.corrcoef(points[:-1, 0], points[1:, 0])[0, 1]
    assert abs(neighbours) < 4 / np.sqrt(rows)


def test_power_of_two_sobol_points_are_evenly_spaced():
    """Of 16 points of a row, each sixteenth of every axis (after its shift) has one."""
    points = sobol_points(TOKENS, LENGTHS, count=16, dimensions=3).numpy()
    assert points.shape == (16, 3, 3)
    gaps = np.diff(np.sort(points, axis=0), axis=0)
    np.testing.assert_allclose(gaps, 1 / 16, atol=1e-12)


def test_seed_of_generator_is_its_initial_seed():
    generator = torch.Generator().manual_seed(7)
    torch.rand(5, generator=generator)
    assert seed_of(generator) == 7
    assert seed_of(None) == 0
