from __future__ import annotations

from typing import Any

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.loss import Loss
from lmlab.core.system import TrainableSystem
from lmlab.training.distributed import make_accelerator
from lmlab.training.validation import held_out_loss


class Source:
    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def batches_per_epoch(self, number: int = 0) -> int:
        return len(self.batches)

    def epoch(self, number: int, start: int = 0) -> Any:
        return iter(self.batches[start:])


def test_held_out_loss_is_a_ratio_of_totals(bigram: Any, batches: list[Batch]) -> None:
    system = bigram(dropout=0.9).train()
    result = held_out_loss(system, Source(batches), make_accelerator())
    assert system.training
    table = torch.log_softmax(system.table.double(), -1)
    total, count = 0.0, 0
    for batch in batches:
        for row, length in zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True):
            for position in range(1, length):
                total -= table[row[position - 1], row[position]].item()
                count += 1
    assert result.count == count
    assert result.loss == pytest.approx(total / count, rel=1e-6)
    means = [held_out_loss(system, Source([b]), make_accelerator()).loss for b in batches]
    assert abs(sum(means) / len(means) - result.loss) > 1e-3  # a mean of means would be wrong


def test_state_is_carried_across_continuing_batches(bigram: Any) -> None:
    system = bigram()
    given = []
    original = system.log_prob

    def note(batch: Batch, *, state: Any = None, generator: Any = None) -> Any:
        given.append(None if state is None else state["seen"].tolist())
        return original(batch, state=state, generator=generator)

    system.log_prob = note
    first = Batch.collate([[5, 6, 7]], 0)
    second = Batch.collate([[7, 5]], 0, continues_previous=True)
    held_out_loss(system, Source([first, second, second]), make_accelerator())
    assert given == [None, [2.0], [3.0]]


def test_system_without_log_prob_is_evaluated_by_its_loss(batches: list[Batch]) -> None:
    class Constant(TrainableSystem):
        def loss(self, batch: Batch, **kwargs: Any) -> Any:
            return Loss(torch.tensor(3.0 * batch.count), torch.tensor(float(batch.count))), None

    result = held_out_loss(Constant(), Source(batches), make_accelerator())
    assert result.loss == pytest.approx(3.0)
    assert result.count == sum(batch.count for batch in batches)


def test_validation_metric_selects_a_loss_component(batches: list[Batch]) -> None:
    """Three nats for each of two targets per batch, not the five nats of the whole loss."""

    class TwoFold(TrainableSystem):
        validation_metric = "first"

        def loss(self, batch: Batch, **kwargs: Any) -> Any:
            first = Loss(torch.tensor(6.0), torch.tensor(2.0))
            return Loss(torch.tensor(25.0), torch.tensor(5.0), {"first": first}), None

    result = held_out_loss(TwoFold(), Source(batches), make_accelerator())
    assert result.loss == pytest.approx(3.0)
    assert result.count == 2 * len(batches)
