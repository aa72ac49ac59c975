"""Counter-based random numbers per example (SplitMix64), whatever batch the example is in."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lmlab.layers.noise import sample_uniform

SPLITMIX_STEP, SPLITMIX_MULTIPLIER_1, SPLITMIX_MULTIPLIER_2 = (
    -0x61C8864680B583EB,
    -0x40A7B892E31B1A47,
    -0x6B2FB644ECCEEE15,
)
"""The constants of SplitMix64 as signed numbers."""
LOW_34_BITS, LOW_37_BITS, LOW_33_BITS, LOW_24_BITS = 2**34 - 1, 2**37 - 1, 2**33 - 1, 2**24 - 1


class PerExampleGenerator(torch.Generator):
    """A generator whose numbers depend on a row's seed, the call and the position only.

    By hashing (SplitMix64, Steele et al. 2014): vectorised over rows, where one generator per row
    would need a loop. Only `per_example_uniform` uses the row seeds; elsewhere it is an ordinary
    generator.
    """

    seeds: Tensor
    """(B,)"""
    calls: int

    def numbers(self, shape: tuple[int, ...] | torch.Size, device: torch.device) -> Tensor:
        """(B, …) in [0, 1); widening the last axis does not change the earlier numbers."""
        assert shape[0] == len(self.seeds), "the first axis is that of the rows"
        self.calls += 1
        # The product as a tensor, which wraps around where a Python integer would grow.
        call = splitmix64_hash(self.seeds + torch.full_like(self.seeds, self.calls) * SPLITMIX_STEP)
        *outer, width = shape[1:]
        line = torch.arange(math.prod(outer), device=call.device)
        lines = splitmix64_hash(call[:, None] + (line + 1) * SPLITMIX_STEP)
        positions = torch.arange(width, device=call.device)
        bits = splitmix64_hash(lines[..., None] + (positions + 1) * SPLITMIX_STEP)
        return (((bits >> 40) & LOW_24_BITS).float() / 2**24).view(shape).to(device)


def per_example_generator(seed: int, rows: Tensor, series: Tensor) -> PerExampleGenerator:
    """Numbers for rows (B,), each with several series; `series` (B,) selects one."""
    generator = PerExampleGenerator()
    by_row = splitmix64_hash(splitmix64_hash(torch.full_like(rows, seed)) + rows * SPLITMIX_STEP)
    generator.seeds, generator.calls = splitmix64_hash(by_row + series.to(rows) * SPLITMIX_STEP), 0
    return generator


def splitmix64_hash(numbers: Tensor) -> Tensor:
    """SplitMix64's mixing of int64 numbers, whose products wrap around."""
    mixed = (numbers ^ ((numbers >> 30) & LOW_34_BITS)) * SPLITMIX_MULTIPLIER_1
    mixed = (mixed ^ ((mixed >> 27) & LOW_37_BITS)) * SPLITMIX_MULTIPLIER_2
    return mixed ^ ((mixed >> 31) & LOW_33_BITS)


def per_example_uniform(
    shape: tuple[int, ...] | torch.Size,
    device: torch.device,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Numbers in [0, 1), per row if the generator is a `PerExampleGenerator`."""
    if isinstance(generator, PerExampleGenerator):
        return generator.numbers(shape, device)
    return sample_uniform(shape, device, generator=generator)
