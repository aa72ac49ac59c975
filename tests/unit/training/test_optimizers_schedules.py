from __future__ import annotations

import math

import pytest

from lmlab.training.config import TrainingConfig
from lmlab.training.optimizers import LearningRateSchedule


def test_constant_after_a_linear_warmup() -> None:
    schedule = LearningRateSchedule(TrainingConfig(learning_rate=0.4, warmup_steps=4))
    assert [schedule.learning_rate_at(step, 0.0) for step in range(6)] == pytest.approx(
        [0.1, 0.2, 0.3, 0.4, 0.4, 0.4]
    )


def test_linear_schedule_decays_to_word2vec_floor() -> None:
    schedule = LearningRateSchedule(TrainingConfig(learning_rate=0.5, schedule="linear"))
    rates = [schedule.learning_rate_at(0, share) for share in (0, 0.25, 1, 2)]
    assert rates == pytest.approx([0.5, 0.375, 5e-5, 5e-5])


def test_cosine_schedule_decays_to_one_percent() -> None:
    schedule = LearningRateSchedule(TrainingConfig(learning_rate=1.0, schedule="cosine"))
    # 0.01 + 0.99 (1 + cos πu)/2 at u = 0, 1/3, 1/2, 1, with cos π/3 = 1/2.
    rates = [schedule.learning_rate_at(0, share) for share in (0, 1 / 3, 0.5, 1)]
    assert rates == pytest.approx([1.0, 0.01 + 0.99 * 0.75, 0.505, 0.01])


def test_inverse_square_root_follows_the_transformer_paper() -> None:
    schedule = LearningRateSchedule(
        TrainingConfig(learning_rate=1.0, schedule="inverse-square-root", warmup_steps=4)
    )
    # Vaswani et al.: proportional to min(n^-1/2, n w^-3/2); here scaled to 1 at n = w.
    for step in (0, 1, 3, 7, 15, 99):
        n = step + 1
        expected = min(n**-0.5, n * 4**-1.5) * math.sqrt(4)
        assert schedule.learning_rate_at(step, 0.5) == pytest.approx(expected)


def test_plateau_schedule_halves_the_learning_rate() -> None:
    schedule = LearningRateSchedule(
        TrainingConfig(learning_rate=1.0, schedule="plateau", plateau_patience=2)
    )
    rates = []
    for loss in (3.0, 2.0, 2.1, 2.0, 2.2, 1.9, 2.0, 2.0):
        schedule.record_validation(loss)
        rates.append(schedule.learning_rate_at(0, 0.5))
    # Cut after the second of 2.1, 2.0; 2.2 waits again; 1.9 is a gain; cut after 2.0, 2.0.
    assert rates == [1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25]


def test_restored_schedule_continues_identically() -> None:
    config = TrainingConfig(schedule="plateau", plateau_patience=2)
    whole, first, second = (
        LearningRateSchedule(config),
        LearningRateSchedule(config),
        LearningRateSchedule(config),
    )
    for loss in (2.0, 2.1):
        whole.record_validation(loss)
        first.record_validation(loss)
    second.restore(first.state())
    for schedule in (whole, second):
        schedule.record_validation(2.2)
    assert (
        second.learning_rate_at(5, 0.3)
        == whole.learning_rate_at(5, 0.3)
        == config.learning_rate * 0.5
    )
