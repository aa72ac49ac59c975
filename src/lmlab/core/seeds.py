"""Validation of random seeds."""

from __future__ import annotations

from lmlab.core.errors import UserError

MAX_SEED = 2**31 - 1


def check_seed(seed: int) -> int:
    """The seed itself; raises a UserError unless numpy, torch and FAISS all accept it."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise UserError(f"seed must be from 0 to {MAX_SEED}, got {seed!r}; try 0.")
    return seed
