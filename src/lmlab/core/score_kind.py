"""Kinds of sequence scores: exact, bound, estimate, pseudo, reconstruction, unnormalised."""

from __future__ import annotations

from typing import Literal, get_args

ScoreKind = Literal["exact", "bound", "estimate", "pseudo", "reconstruction", "unnormalised"]
"""
- exact: the distribution's own log-probability
- bound: never above it (an ELBO)
- estimate: random, right on average or in the limit
- pseudo: a sum of conditionals that need not come from one joint distribution
- reconstruction: log-probability of the input given its own encoding
- unnormalised: right up to an unknown constant (an energy)
"""

SCORE_KINDS: tuple[ScoreKind, ...] = get_args(ScoreKind)
NORMALISED_KINDS: frozenset[ScoreKind] = frozenset({"exact", "bound", "estimate"})
"""Kinds with a perplexity."""
