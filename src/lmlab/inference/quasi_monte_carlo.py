"""Quasi-Monte Carlo: Sobol points for expectations, seeded by the text itself.

With a random generator, a score would depend on all samples before it. Here the points of a row
depend only on its own tokens and a seed, so that a sentence has the same score alone, padded and in
any batch; over many sentences they are as good as independent, so errors average out.
"""

from __future__ import annotations

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15 - 2**64
"""The odd number nearest to 2⁶⁴ over the golden ratio: its multiples fill the ring evenly."""


def sobol_points(
    tokens: Tensor, lengths: Tensor, *, count: int, dimensions: int, seed: int = 0
) -> Tensor:
    """(S, B, L) Sobol points in (0, 1): `count` of L `dimensions` per row of (B, T) tokens.

    Each row is shifted round the unit cube by its own offset (Cranley and Patterson 1976): each
    point is uniform, so a mean over them is unbiased over seeds, and they are more even than
    independent ones. In double precision. Cost S · B · L.
    """
    shifts = _uniform(_row_hash(tokens, lengths, seed)[:, None] + _multiples(dimensions, tokens))
    engine = torch.quasirandom.SobolEngine(dimensions, scramble=False)
    even = engine.draw(count, dtype=torch.float64).to(tokens.device)
    moved = (even[:, None] + shifts).frac()
    return moved.clamp(min=2.0**-53, max=1 - 2.0**-53)


def seed_of(generator: torch.Generator | None) -> int:
    """The initial seed of a generator, however often it was used; 0 if there is none.

    Points depend on seeds, not on earlier samples.
    """
    return 0 if generator is None else generator.initial_seed()


def _row_hash(tokens: Tensor, lengths: Tensor, seed: int) -> Tensor:
    """(B,) 64-bit hash of each row's tokens and their positions, without padding."""
    time = tokens.shape[1]
    each = _mixed(_mixed(tokens) + _multiples(time, tokens))
    inside = torch.arange(time, device=tokens.device) < lengths[:, None]
    return _mixed((each * inside).sum(1) + _mixed(torch.full_like(lengths, _signed(seed))))


def _multiples(count: int, like: Tensor) -> Tensor:
    return torch.arange(1, count + 1, device=like.device) * GOLDEN


def _mixed(bits: Tensor) -> Tensor:
    """Splitmix64's finaliser (Steele et al. 2014): every output bit depends on every input bit."""
    bits = (bits ^ _shifted(bits, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    bits = (bits ^ _shifted(bits, 27)) * (0x94D049BB133111EB - 2**64)
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, places: int) -> Tensor:
    """A logical shift to the right; torch's own is arithmetic."""
    return (bits >> places) & ((1 << (64 - places)) - 1)


def _uniform(bits: Tensor) -> Tensor:
    """53 of the 64 bits as a number in [0, 1), in double precision."""
    return _shifted(_mixed(bits), 11).double() * 2.0**-53


def _signed(seed: int) -> int:
    """A seed of up to 64 bits as the signed number with the same bits."""
    return (seed + 2**63) % 2**64 - 2**63
