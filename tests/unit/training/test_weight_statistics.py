"""Training statistics in the metrics: update ratio, norms, non-finite losses."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.training.loop import FitJob, fit_by_gradient
from lmlab.training.training_logs import NOT_FINITE, _flatten, read_metrics
from lmlab.training.weight_statistics import UpdateMonitor, mean_norm, token_vectors, update_ratio

MakeJob = Callable[..., FitJob]


def test_update_ratio_is_the_median_over_tensors() -> None:
    before = [torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0]]), torch.tensor([[2.0]])]
    changed = [torch.tensor([[3.0, 4.5]]), torch.tensor([[1.0]]), torch.tensor([[4.0]])]
    # 0.5/5, 0/1 and 2/2: the median is a tenth.
    after = [torch.nn.Parameter(tensor) for tensor in changed]
    assert update_ratio(before, after) == pytest.approx(0.1)


def test_update_ratio_ignores_zero_tensors() -> None:
    zeros, ones = torch.zeros(1, 2), torch.ones(1, 2)
    changed = [torch.nn.Parameter(zeros + 1), torch.nn.Parameter(ones * 1.1)]
    assert update_ratio([zeros, ones], changed) == pytest.approx(0.1)
    assert update_ratio([zeros], changed[:1]) is None


def test_mean_norm_averages_row_norms() -> None:
    assert mean_norm(torch.tensor([[3.0, 4.0], [0.0, 1.0]])) == pytest.approx(3.0)


def test_token_vectors_finds_per_token_tables(bigram: Any) -> None:
    system = bigram(8)
    assert list(token_vectors(system)) == ["table"]


def test_update_ratio_interval_depends_on_step_only(bigram: Any) -> None:
    """A line every 4 steps: the least multiple of 4 that is at least 10 is 12."""
    monitor, measured_steps = UpdateMonitor(bigram(), log_every=4), []
    for step in range(1, 30):
        monitor.record_before_step(step)
        measured_steps += [step] if "update_ratio" in monitor.statistics() else []
    assert measured_steps == [1, 12, 24]


def test_update_ratio_and_vector_norm_metrics_by_hand(
    make_job: MakeJob, bigram: Any, batches: list[Batch]
):
    system = bigram()
    before = system.table.detach().clone()
    job = make_job(system=system, steps=1, epochs=None, optimizer="sgd", learning_rate=0.5)
    fit_by_gradient(job)
    [line] = [line for line in read_metrics(job.run.metrics) if line["event"] == "train"]
    after = system.table.detach()
    # The update is learning rate times gradient, whose norm is in the same line.
    change = 0.5 * min(line["gradient_norm"], 1.0)
    assert line["update_ratio"] == pytest.approx(change / float(before.norm()), rel=1e-5)
    assert line["vector_norms"]["table"] == pytest.approx(float(after.norm(dim=1).mean()))


def test_non_finite_loss_is_logged_as_an_event(
    make_job: MakeJob, bigram: Any, tmp_path: Path
) -> None:
    system = bigram()
    system.poison_at = 2
    job = make_job(system=system, epochs=3)
    with pytest.raises(UserError, match="not finite"):
        fit_by_gradient(job)
    last = json.loads(job.run.metrics.read_text().splitlines()[-1])
    assert (last["event"], last["step"]) == (NOT_FINITE, 2)


def test_nested_metrics_are_flattened_for_trackers() -> None:
    flat = _flatten({"loss": 1.5, "vector_norms": {"a": 2.0, "b": math.pi}})
    assert flat == {"loss": 1.5, "vector_norms/a": 2.0, "vector_norms/b": math.pi}
