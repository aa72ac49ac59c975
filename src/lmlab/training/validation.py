"""Validation loss (log_prob or training loss), and the segment length for held-out running text."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.protocols import LogProb
from lmlab.core.state import State
from lmlab.core.system import System, TrainableSystem
from lmlab.training.config import TrainingConfig
from lmlab.training.data_loaders import HELD_OUT_BPTT, BatchLoader
from lmlab.training.distributed import all_reduce_sum, shard_batch


@dataclass(frozen=True, kw_only=True)
class ValidationLoss:
    """Negative log-likelihood in nats, summed over `count` predicted tokens."""

    total: float
    count: int

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.total / max(self.count, 1)


def held_out_loss(
    system: System, loader: BatchLoader, accelerator: Accelerator, *, seed: int = 0
) -> ValidationLoss:
    """Loss total and count over every batch, by log_prob or by the training loss, as the system
    says.

    Cost: one forward pass over the text. The system's mode is restored.
    """
    training = system.training
    system.eval()
    generator = torch.Generator(device=accelerator.device).manual_seed(seed)
    sums = torch.zeros(2, dtype=torch.float64)
    state: State | None = None
    try:
        with torch.no_grad():
            for full_batch in loader.epoch(0):
                batch = shard_batch(full_batch, accelerator)
                if batch is None:
                    continue
                state = state if batch.continues_previous else None
                batch_sums, state = _loss_and_count(system, batch, state, generator)
                sums += batch_sums
    finally:
        system.train(training)
    total, count = all_reduce_sum(sums, accelerator)
    return ValidationLoss(total=total if count else math.nan, count=int(count))


def _loss_and_count(
    system: System, batch: Batch, state: State | None, generator: torch.Generator
) -> tuple[Tensor, State | None]:
    """Negative log-likelihood of a batch (or its loss), its count, and the state after it."""
    if isinstance(system, LogProb) and system.validation_metric == "log_prob":
        score = system.log_prob(batch, state=state, generator=generator)
        return torch.tensor([-score.totals.cpu().double().sum().item(), batch.count]), score.state
    assert isinstance(system, TrainableSystem)
    loss, next_state = system.held_out_loss(batch, state=state, generator=generator)
    loss = loss.parts.get(system.validation_metric, loss)
    return torch.tensor([loss.total.item(), loss.count.item()]), next_state


def held_out_bptt(
    system: System, loader: BatchLoader, config: TrainingConfig, device: torch.device
) -> int:
    """Segment length for held-out contiguous text, matched to training.

    A system that carries its state takes long segments. Without a state each segment starts afresh,
    and training had segments of `config.bptt`: positions beyond were never trained. Cost: one
    forward pass over the first batch of `loader`.
    """
    max_segment = HELD_OUT_BPTT if system.window is None else min(HELD_OUT_BPTT, system.window)
    by_segment = system.fitting == "gradient"  # count-based models take the stream as a whole
    if by_segment and not _carries_state(system, next(loader.epoch(0)).to(device)):
        return min(max_segment, config.bptt)
    return max_segment


def _carries_state(system: System, batch: Batch) -> bool:
    """Whether the system returns a state; changes neither it nor any random state."""
    training = system.training
    system.eval()
    generator = torch.Generator(device=batch.tokens.device).manual_seed(0)
    try:
        with torch.no_grad(), torch.random.fork_rng():
            return _loss_and_count(system, batch, None, generator)[1] is not None
    finally:
        system.train(training)
