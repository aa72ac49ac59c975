"""Random numbers that belong to a row, whatever batch it stands in."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lmlab.layers.noise import uniform

STEP, FIRST, SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
"""The constants of SplitMix64 as signed numbers."""
KEEP_34, KEEP_37, KEEP_33, KEEP_24 = 2**34 - 1, 2**37 - 1, 2**33 - 1, 2**24 - 1


class RowNumbers(torch.Generator):
    """A generator whose numbers depend on a row's seed, the call and the place, and no other row.

    By hashing them (SplitMix64, Steele et al. 2014): all rows at once, where a generator for each
    row would have to be asked row by row. It is known to `numbers` below; elsewhere it is a
    generator like any other.
    """

    seeds: Tensor
    """(B,)"""
    calls: int

    def numbers(self, shape: tuple[int, ...] | torch.Size, device: torch.device) -> Tensor:
        """(B, …) in [0, 1); those at the same place of a wider shape, in its last axis, are equal
        where the axes before it are."""
        assert shape[0] == len(self.seeds), "the first axis is that of the rows"
        self.calls += 1
        # The product as a tensor, which wraps around where a number of Python would grow.
        call = hashed(self.seeds + torch.full_like(self.seeds, self.calls) * STEP)
        *outer, width = shape[1:]
        line = torch.arange(math.prod(outer), device=call.device)
        lines = hashed(call[:, None] + (line + 1) * STEP)
        place = torch.arange(width, device=call.device)
        bits = hashed(lines[..., None] + (place + 1) * STEP)
        return (((bits >> 40) & KEEP_24).float() / 2**24).view(shape).to(device)


def row_numbers(seed: int, rows: Tensor, which: Tensor) -> RowNumbers:
    """Numbers for rows (B,), of which each has several series; `which` (B,) is taken."""
    made = RowNumbers()
    by_row = hashed(hashed(torch.full_like(rows, seed)) + rows * STEP)
    made.seeds, made.calls = hashed(by_row + which.to(rows) * STEP), 0
    return made


def hashed(numbers: Tensor) -> Tensor:
    """SplitMix64's mixing of int64 numbers, whose products wrap around."""
    mixed = (numbers ^ ((numbers >> 30) & KEEP_34)) * FIRST
    mixed = (mixed ^ ((mixed >> 27) & KEEP_37)) * SECOND
    return mixed ^ ((mixed >> 31) & KEEP_33)


def numbers(
    shape: tuple[int, ...] | torch.Size,
    device: torch.device,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Numbers in [0, 1), by rows where the generator knows them."""
    if isinstance(generator, RowNumbers):
        return generator.numbers(shape, device)
    return uniform(shape, device, generator=generator)
