"""Assertions whose message names the property, the position, and expected and actual value."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

P_VALUE_THRESHOLD = 1e-6
"""The p-value below which samples do not have the model's distribution."""


def claim(holds: object, sentence: str) -> None:
    """Fail with a sentence and nothing else."""
    if not holds:
        raise AssertionError(sentence)


def claim_protocol(system: object, protocol: type) -> None:
    """A system satisfies a protocol that its card names."""
    name = protocol.__name__
    claim(isinstance(system, protocol), f"the card names {name}, which {system!r} does not satisfy")


def claim_close(
    got: Tensor,
    expected: Tensor,
    what: str,
    *,
    atol: float,
    rtol: float = 0.0,
    axes: Sequence[str] = ("position",),
    first: int = 0,
) -> None:
    """Two tensors agree; `axes` name their dimensions in the sentence, counted from `first`."""
    _claim_shape(got, expected, what)
    claim(got.dtype == expected.dtype, f"{what}: expected {expected.dtype}, got {got.dtype}")
    _claim_none(
        ~torch.isclose(got, expected, atol=atol, rtol=rtol), got, expected, what, axes, first
    )


def claim_same(
    got: Tensor, expected: Tensor, what: str, *, axes: Sequence[str] = ("position",), first: int = 0
) -> None:
    """Two tensors are equal to the bit."""
    _claim_shape(got, expected, what)
    _claim_none(~(got == expected), got, expected, what, axes, first)


def _claim_shape(got: Tensor, expected: Tensor, what: str) -> None:
    shapes = f"expected shape {tuple(expected.shape)}, got {tuple(got.shape)}"
    claim(got.shape == expected.shape, f"{what}: {shapes}")


def _claim_none(
    wrong: Tensor, got: Tensor, expected: Tensor, what: str, axes: Sequence[str], first: int
) -> None:
    if not wrong.any():
        return
    index = tuple(wrong.nonzero()[0].tolist())
    where = ", ".join(
        f"{axes[min(axis, len(axes) - 1)]} {number + first}" for axis, number in enumerate(index)
    )
    raise AssertionError(
        f"{what}: at {where or 'its only number'} expected {expected[index].item():.6g}, got "
        f"{got[index].item():.6g} ({int(wrong.sum())} of {wrong.numel()} differ)."
    )


def claim_unchanged(
    after: Tensor, before: Tensor, masked: Tensor, changed: int, first: int = 0
) -> None:
    """(T,) predictions at the `masked` positions are the same after another one was changed."""
    wrong = masked & ~(after == before)
    if wrong.any():
        position = int(wrong.nonzero()[0])
        raise AssertionError(
            f"position {position + first} depends on position {changed}, which it must not see: "
            f"its log-probability was {before[position].item():.6g} and is "
            f"{after[position].item():.6g} with another token there."
        )


def claim_mass(mass: float, sequences: int, *, exact: bool, tolerance: float = 1e-5) -> None:
    """Probabilities sum to one, or to at most one where they are bounds."""
    holds = abs(mass - 1) <= tolerance if exact else mass <= 1 + tolerance
    expected = "1" if exact else "at most 1"
    claim(
        holds, f"probabilities sum to {mass:.6g} over {sequences:,} sequences, expected {expected}."
    )


def claim_sampled(
    counts: Mapping[Hashable, int], probabilities: Mapping[Hashable, float], p_value: float
) -> None:
    """Samples have the distribution that the model scores by, as a chi-square test finds."""
    total = sum(counts.values())
    names = list(counts)
    expected = total * np.array([probabilities[name] for name in names])
    observed = np.array([counts[name] for name in names], float)
    worst = int(np.argmax(np.abs(observed - expected)))
    claim(
        p_value > P_VALUE_THRESHOLD,
        f"{total:,} samples do not follow the scored probabilities (chi-square p = {p_value:.2g}): "
        f"{names[worst]} was expected {expected[worst]:.1f} times and came {observed[worst]:.0f} "
        "times.",
    )
