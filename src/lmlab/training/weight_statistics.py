"""Weight statistics during training: update ratios and embedding norms."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmlab.core.system import System

MIN_STEPS_BETWEEN = 10
"""Minimum steps between two measurements, each of which costs a copy of the weights."""


class UpdateMonitor:
    """Monitors the update-to-weight ratio of optimiser steps and the norms of token embeddings.

    It changes nothing; which steps are measured depends on their number alone, so that a resumed
    training logs the same.
    """

    def __init__(self, system: System, *, log_every: int) -> None:
        self._system = system
        self._every = log_every * -(-MIN_STEPS_BETWEEN // log_every)
        matrices = [p for p in system.parameters() if p.requires_grad and p.ndim >= 2]
        # Biases start at zero, so that a change relative to them is meaningless.
        self._matrices = matrices or [p for p in system.parameters() if p.requires_grad]
        self._before: list[Tensor] | None = None

    def record_before_step(self, step: int) -> None:
        """Record the weights before step number `step`, counted from 1."""
        measured = step == 1 or step % self._every == 0
        self._before = [p.detach().clone() for p in self._matrices] if measured else None

    def statistics(self) -> dict[str, float | dict[str, float]]:
        """The statistics for a metrics line after the step."""
        statistics: dict[str, float | dict[str, float]] = {}
        if self._before is not None:
            ratio = update_ratio(self._before, self._matrices)
            statistics |= {} if ratio is None else {"update_ratio": ratio}
        norms = {name: mean_norm(t) for name, t in token_vectors(self._system).items()}
        return statistics | ({"vector_norms": norms} if norms else {})


@torch.no_grad()
def update_ratio(before: list[Tensor], after: list[nn.Parameter]) -> float | None:
    """Update ratio: the median over tensors of ‖change‖ / ‖weights before‖, zero tensors excluded.

    None where all of them are zeros.
    """
    ratios = [
        torch.linalg.vector_norm(current - previous) / torch.linalg.vector_norm(previous)
        for previous, current in zip(before, after, strict=True)
        if previous.any()
    ]
    return float(torch.stack(ratios).median()) if ratios else None


def token_vectors(system: System) -> dict[str, Tensor]:
    """The token embedding tables (V, W) by name; shared ones once."""
    return {
        name: parameter
        for name, parameter in system.named_parameters()
        if parameter.ndim == 2 and parameter.shape[0] == system.vocabulary.size
    }


@torch.no_grad()
def mean_norm(vectors: Tensor) -> float:
    """The mean Euclidean norm of the rows."""
    return float(torch.linalg.vector_norm(vectors, dim=1).mean())
