"""Guard for building stored models: memory bounded by the weights, one-sentence errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lmlab.core.errors import UserError
from lmlab.core.memory_budget import memory_budget

MAX_WIDENING = 4
"""Maximum bytes in memory per byte of stored weights: 8-bit numbers become 32-bit ones."""
OVERHEAD = 256 << 20
"""Bytes of a model in addition to its stored weights: masks, position tables."""
OVERHEAD_TENSORS = 1000
"""Parameters of a model in addition to its stored ones."""
UNBUILDABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What building a model from an invalid config raises."""


@contextmanager
def stored_model_guard(folder: Path, weights: Path | int) -> Iterator[None]:
    """Guard for building a stored model: memory bounded by its weights, one-sentence errors.

    `weights` is the file of its weights, or their size in bytes. Any failure here is due to the
    files, which are not trusted.
    """
    config = folder / "config.json"
    if isinstance(weights, Path):
        weights = weights.stat().st_size if weights.is_file() else 0
    try:
        budget = MAX_WIDENING * weights + OVERHEAD
        # A parameter has 2 bytes or more, and most have hundreds.
        max_tensors = weights // 2 + OVERHEAD_TENSORS
        with memory_budget(f"the model that {config} describes", budget, tensors=max_tensors):
            yield
    except UserError:
        raise
    except UNBUILDABLE as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UserError(
            f"{config} describes no model that can be built ({reason[:200]}); restore it, or make "
            "the model again."
        ) from error
