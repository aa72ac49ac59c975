"""Cost estimate of a training: parameters, memory and time, from a few steps on a copy."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.state import State
from lmlab.core.system import System
from lmlab.training.config import TrainingConfig
from lmlab.training.data_loaders import BatchLoader
from lmlab.training.optimizers import build_optimizer
from lmlab.training.training_logs import format_duration

PROBE_SECONDS = 1.5
PROBE_STEPS = 12
PARAMETER_COPIES = {"adamw": 4, "adam": 4, "adafactor": 2, "rmsprop": 3, "sgd": 2}
"""Copies of a parameter per optimiser, itself and its gradient included; adafactor's row and column
sums are negligible."""


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """Estimated cost of a training."""

    parameters: int
    memory: int
    """Bytes of weights, gradients, optimiser state and the activations of one batch."""
    tokens_per_second: float
    seconds: float | None
    """Time for the whole budget, without validation; None where the budget is a time."""

    def sentence(self) -> str:
        """A sentence to print before training."""
        duration = "" if self.seconds is None else f", about {format_duration(self.seconds)}"
        return (
            f"{self.parameters:,} parameters, about {format_bytes(self.memory)} of memory"
            f"{duration} at {self.tokens_per_second:,.0f} tokens/s"
        )


def format_bytes(size: float) -> str:
    """Human-readable bytes."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def estimate_cost(
    system: System, loader: BatchLoader, config: TrainingConfig, *, tokens: int, processes: int = 1
) -> CostEstimate:
    """Time a few steps on a copy of the system; neither its weights nor any random state change.

    `tokens` is the number of predicted tokens per epoch, shared evenly by `processes`.
    """
    with torch.random.fork_rng():
        trial = copy.deepcopy(system).train()
        optimizer = build_optimizer(trial, config)
        with activation_bytes() as activation_sizes:
            _step(trial, optimizer, max(islice(loader.epoch(0), 4), key=lambda b: b.tokens.numel()))
        speed = _speed(trial, optimizer, loader) * processes
    weights = sum(p.numel() * p.element_size() for p in system.parameters())
    return CostEstimate(
        parameters=system.parameter_count,
        memory=weights * PARAMETER_COPIES[config.optimizer] + sum(activation_sizes.values()),
        tokens_per_second=speed,
        seconds=_seconds(loader, config, tokens, speed),
    )


def _seconds(
    loader: BatchLoader, config: TrainingConfig, tokens: int, speed: float
) -> float | None:
    """Time for the budget; None where a time budget ends first."""
    token_counts = []
    if config.epochs is not None:
        token_counts.append(float(tokens * config.epochs))
    if config.steps is not None:
        steps = config.steps * config.grad_accumulation
        token_counts.append(tokens * steps / max(loader.batches_per_epoch(), 1))
    if not token_counts:
        return None
    seconds = min(token_counts) / speed
    return None if config.minutes is not None and 60 * config.minutes < seconds else seconds


def _speed(trial: System, optimizer: torch.optim.Optimizer, loader: BatchLoader) -> float:
    """Predicted tokens per second over the first batches of an epoch."""
    start, tokens = time.perf_counter(), 0
    state: State | None = None
    for batch in islice(loader.epoch(0), PROBE_STEPS):
        state = _step(trial, optimizer, batch, state)
        tokens += batch.count
        if time.perf_counter() - start > PROBE_SECONDS:
            break
    return tokens / max(time.perf_counter() - start, 1e-9)


def _step(
    trial: System, optimizer: torch.optim.Optimizer, batch: Batch, state: State | None = None
) -> State | None:
    device = next(trial.parameters()).device
    loss, state = trial(batch.to(device), state=state if batch.continues_previous else None)
    loss.mean.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return None if state is None else state.detach()


@contextmanager
def activation_bytes() -> Iterator[dict[int, int]]:
    """Bytes that autograd saves for the backward pass, by storage address."""
    sizes: dict[int, int] = {}

    def record_size(value: Tensor) -> Tensor:
        sizes[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(record_size, lambda value: value):
        yield sizes
