"""Assertions of the conformance suite: a `Failure` names the property, the position, and the
expected and the measured number."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmlab.conformance.check import Failure

P_VALUE_THRESHOLD = 1e-6
"""The p-value below which samples do not have the model's distribution."""


def assert_that(holds: object, sentence: str, **where: int | str) -> None:
    """Fail with a sentence and nothing else."""
    if not holds:
        raise Failure(sentence, where=where)


def lacks(system: object, protocol: str) -> Failure:
    """The failure of a system whose card names a protocol that it does not satisfy."""
    return Failure(
        f"the card names {protocol}, which {type(system).__name__} does not satisfy",
        where={"protocol": protocol},
    )


def assert_close(
    measured: Tensor,
    expected: Tensor,
    what: str,
    *,
    atol: float,
    rtol: float = 0.0,
    axes: Sequence[str] = ("position",),
    first: int = 0,
    **where: int | str,
) -> None:
    """Two tensors agree; `axes` name their dimensions in the sentence, counted from `first`.

    `where` is further data of the failure.
    """
    _assert_shape(measured, expected, what)
    assert_that(
        measured.dtype == expected.dtype, f"{what}: expected {expected.dtype}, got {measured.dtype}"
    )
    wrong = ~torch.isclose(measured, expected, atol=atol, rtol=rtol)
    _assert_none(wrong, measured, expected, what, axes, first, **where)


def assert_equal(
    measured: Tensor,
    expected: Tensor,
    what: str,
    *,
    axes: Sequence[str] = ("position",),
    first: int = 0,
    **where: int | str,
) -> None:
    """Two tensors are equal to the bit; the arguments are those of `assert_close`."""
    _assert_shape(measured, expected, what)
    _assert_none(~(measured == expected), measured, expected, what, axes, first, **where)


def _assert_shape(measured: Tensor, expected: Tensor, what: str) -> None:
    shapes = f"expected shape {tuple(expected.shape)}, got {tuple(measured.shape)}"
    assert_that(measured.shape == expected.shape, f"{what}: {shapes}")


def _assert_none(
    wrong: Tensor,
    measured: Tensor,
    expected: Tensor,
    what: str,
    axes: Sequence[str],
    first: int,
    **where: int | str,
) -> None:
    if not wrong.any():
        return
    index = tuple(wrong.nonzero()[0].tolist())
    names = [axes[min(axis, len(axes) - 1)] for axis in range(len(index))]
    numbers = [number + first for number in index]
    place = ", ".join(f"{name} {number}" for name, number in zip(names, numbers, strict=True))
    one, other = expected[index].item(), measured[index].item()
    raise Failure(
        f"{what}: at {place or 'its only number'} expected {one:.6g}, got {other:.6g} "
        f"({int(wrong.sum())} of {wrong.numel()} differ).",
        where={**where, **dict(zip(names, numbers, strict=True))},
        expected=one,
        measured=other,
    )


def assert_unchanged(
    after: Tensor, before: Tensor, masked: Tensor, changed: int, first: int = 0
) -> None:
    """(T,) predictions at the `masked` positions are the same after another one was changed."""
    wrong = masked & ~(after == before)
    if not wrong.any():
        return
    position = int(wrong.nonzero()[0])
    expected, measured = before[position].item(), after[position].item()
    raise Failure(
        f"position {position + first} depends on position {changed}, which it must not see: "
        f"its log-probability was {expected:.6g} and is {measured:.6g} with another token there.",
        where={"position": position + first, "changed position": changed},
        expected=expected,
        measured=measured,
    )


def assert_total_mass(
    mass: float, sequences: int, *, exact: bool, tolerance: float = 1e-5, of: str = "sequences"
) -> None:
    """Probabilities sum to one, or to at most one where they are bounds."""
    if abs(mass - 1) <= tolerance if exact else mass <= 1 + tolerance:
        return
    expected = "1" if exact else "at most 1"
    raise Failure(
        f"probabilities sum to {mass:.6g} over {sequences:,} {of}, expected {expected}.",
        expected=1.0,
        measured=mass,
    )


def assert_samples_follow(
    counts: Mapping[Hashable, int],
    probabilities: Mapping[Hashable, float],
    p_value: float,
    show: Callable[[Any], str] = str,
) -> None:
    """Samples have the distribution that the model scores by, as a chi-square test finds.

    `show` makes an outcome readable.
    """
    if p_value > P_VALUE_THRESHOLD:
        return
    total = sum(counts.values())
    names = list(counts)
    expected = total * np.array([probabilities[name] for name in names])
    observed = np.array([counts[name] for name in names], float)
    worst = int(np.argmax(np.abs(observed - expected)))
    outcome = show(names[worst])
    raise Failure(
        f"{total:,} samples do not follow the scored probabilities (chi-square p = {p_value:.2g}): "
        f"{outcome} was expected {expected[worst]:.1f} times and came {observed[worst]:.0f} times.",
        where={"tokens": outcome},
        expected=float(expected[worst]),
        measured=float(observed[worst]),
    )


def chi_square_p_value(observed: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    """Upper tail of Pearson's statistic, cells with fewer than 5 expected pooled into one."""
    small = expected < 5
    observed = np.append(observed[~small], observed[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    kept = expected > 0
    statistic = ((observed - expected)[kept] ** 2 / expected[kept]).sum()
    degrees = torch.tensor((kept.sum() - 1) / 2.0, dtype=torch.float64)
    half = torch.tensor(statistic / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, half))
