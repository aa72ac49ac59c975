"""The loss on held-out text."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from accelerate import Accelerator

from lmlab.core.protocols import LogProb
from lmlab.core.state import State
from lmlab.core.system import System
from lmlab.training.data import BatchSource
from lmlab.training.processes import share, sum_numbers


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Minus a log-probability in nats, summed over `count` predicted tokens."""

    total: float
    count: int

    @property
    def loss(self) -> float:
        """Nats per token, divided once."""
        return self.total / max(self.count, 1)


def evaluate(
    system: System, source: BatchSource, accelerator: Accelerator, *, seed: int = 0
) -> Evaluation:
    """Total and count over every batch of a source, by log_prob or by the loss, as the system says.

    Cost: one forward pass over the text. The system is left in the mode it was in.
    """
    training = system.training
    system.eval()
    generator = torch.Generator(device=accelerator.device).manual_seed(seed)
    sums = torch.zeros(2, dtype=torch.float64)
    state: State | None = None
    try:
        with torch.no_grad():
            for whole in source.epoch(0):
                batch = share(whole, accelerator)
                if batch is None:
                    continue
                state = state if batch.carries else None
                if isinstance(system, LogProb) and system.watched == "log_prob":
                    scored = system.log_prob(batch, state=state, generator=generator)
                    sums += torch.tensor([-scored.totals.double().sum().item(), batch.count])
                    state = scored.state
                else:
                    loss, state = system.loss(batch, state=state, generator=generator)
                    loss = loss.parts.get(system.watched, loss)
                    sums += torch.tensor([loss.total.item(), loss.count.item()])
    finally:
        system.train(training)
    total, count = sum_numbers(sums, accelerator)
    return Evaluation(total=total if count else math.nan, count=int(count))
