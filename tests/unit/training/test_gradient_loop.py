from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.tensor_files import read_tensors
from lmlab.training.loop import FitJob, clip_gradients, fit_by_gradient

MakeJob = Callable[..., FitJob]
SGD = {"optimizer": "sgd", "learning_rate": 0.5, "grad_clip": 0.0}


def test_a_step_is_the_gradient_of_the_total_over_the_count(
    make_job: MakeJob, bigram: Any, batches: list[Batch]
) -> None:
    batch, system = batches[0], bigram()
    before = system.table.detach().clone()
    fit_by_gradient(make_job(system=system, train=[batch], steps=1, epochs=None, **SGD))
    # d/d table[a] of -log p(b | a) is softmax(table[a]) - onehot(b), summed over real pairs.
    expected = torch.zeros_like(before)
    for row, length in zip(batch.tokens, batch.lengths, strict=True):
        for a, b in pairwise(row[:length]):
            expected[a] += torch.softmax(before[a], -1)
            expected[a, b] -= 1
    expected /= int((batch.lengths - 1).sum())
    torch.testing.assert_close(system.table.detach(), before - 0.5 * expected)
    torch.testing.assert_close(system.idle.detach(), torch.ones(3))


def test_accumulated_batches_step_as_one_batch_does(
    make_job: MakeJob, bigram: Any, batches: list[Batch]
) -> None:
    whole, together, apart = batches[2], bigram(), bigram()
    parts = [whole.select([0]), whole.select([1, 2, 3, 4, 5])]
    fit_by_gradient(make_job(name="a", system=together, train=[whole], epochs=4, **SGD))
    job = make_job(name="b", system=apart, train=parts, epochs=4, grad_accumulation=2, **SGD)
    outcome = fit_by_gradient(job)
    assert (outcome.progress.step, outcome.progress.epoch) == (4, 4)
    torch.testing.assert_close(apart.table, together.table)


def test_an_epoch_that_does_not_divide_ends_with_a_smaller_step(
    make_job: MakeJob, batches: list[Batch]
) -> None:
    outcome = fit_by_gradient(make_job(epochs=2, grad_accumulation=3))
    assert len(batches) == 4
    assert (outcome.progress.step, outcome.progress.epoch) == (4, 2)


def test_clipping_shortens_only_what_is_longer() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))]
    for clip, kept in ((1.0, 1 / 5.0), (0.0, 1.0), (7.0, 1.0)):
        parameters[0].grad = torch.tensor([30.0, 0.0])
        parameters[1].grad = torch.tensor([40.0])
        # Scaled by a tenth: (3, 0, 4) has norm 5.
        assert clip_gradients(parameters, 0.1, clip) == pytest.approx(5.0)
        torch.testing.assert_close(parameters[0].grad, torch.tensor([3.0 * kept, 0.0]))
        torch.testing.assert_close(parameters[1].grad, torch.tensor([4.0 * kept]))


def test_the_state_of_contiguous_text_is_carried_detached_and_forgotten_at_the_start(
    make_job: MakeJob, bigram: Any
) -> None:
    first = Batch.collate([[5, 6, 7], [6, 7, 5]], 0)
    second = Batch.collate([[7, 5, 6, 7], [5, 6, 5, 5]], 0, carries=True)
    system = bigram()
    fit_by_gradient(make_job(system=system, train=[first, second], epochs=2))
    seen = [None if state is None else state["seen"].tolist() for state in system.states]
    assert seen == [None, [2.0, 2.0], None, [2.0, 2.0]]
    assert all(state is None or not state["seen"].requires_grad for state in system.states)


def test_the_loss_of_the_metrics_is_over_all_steps_since_the_last_line(
    make_job: MakeJob, bigram: Any, batches: list[Batch], read_losses: Callable[..., Any]
) -> None:
    system = bigram()
    counts = [batch.count for batch in batches]
    with torch.no_grad():
        totals = [float(system.loss(batch)[0].total) for batch in batches]
    # A learning rate too small to change anything leaves the totals as they are.
    job = make_job(system=system, epochs=1, optimizer="sgd", learning_rate=1e-12, log_every=2)
    fit_by_gradient(job)
    lines = read_losses(job.run.path)
    assert [(line["step"], line["count"]) for line in lines] == [
        (1, counts[0]),
        (2, counts[1]),
        (4, counts[2] + counts[3]),
    ]
    assert lines[-1]["loss"] == pytest.approx(sum(totals[2:]) / sum(counts[2:]), rel=1e-6)
    assert all(line["event"] == "train" for line in lines)


def test_a_loss_that_is_no_number_stops_before_it_reaches_the_weights(
    make_job: MakeJob, bigram: Any
) -> None:
    system = bigram()
    system.poison_at = 6
    job = make_job(system=system, epochs=5, checkpoint_steps=5)
    with pytest.raises(UserError, match=r"not finite at step 7 \(epoch 2\).*learning_rate"):
        fit_by_gradient(job)
    assert torch.isfinite(system.table).all()
    assert [path.name for path in job.run.checkpoints_folder.iterdir()] == ["step-5"]


def test_the_best_weights_by_validation_are_kept_and_patience_ends_training(
    make_job: MakeJob, bigram: Any
) -> None:
    # Trained on 5 → 6 alone, with half of the held-out text 5 → 7: it gets better, then worse.
    train = [Batch.collate([[5, 6]] * 4, 0)]
    held_out = [Batch.collate([[5, 6], [5, 7]], 0)]
    system = bigram()
    with torch.no_grad():
        system.table.zero_()
        system.table[5, 6] = -2.0
    seen = []
    job = make_job(system=system, train=train, held_out=held_out, epochs=200, patience=3, **SGD)
    report = job.reporter.report_validation

    def note(progress: Any, evaluation: Any, split: str, *more: Any) -> None:
        seen.append((evaluation.loss, system.table.detach().clone()))
        report(progress, evaluation, split, *more)

    job.reporter.report_validation = note  # type: ignore[method-assign]
    outcome = fit_by_gradient(job)
    best = min(range(len(seen)), key=lambda place: seen[place][0])
    assert outcome.reason == "early"
    assert 0 < best == len(seen) - 4
    assert outcome.progress.best == seen[best][0]
    torch.testing.assert_close(read_tensors(job.run.weights)["table"], seen[best][1])


def test_without_validation_the_last_weights_are_kept(make_job: MakeJob, bigram: Any) -> None:
    system = bigram()
    job = make_job(system=system, epochs=2)
    fit_by_gradient(job)
    assert torch.equal(read_tensors(job.run.weights)["table"], system.table)


def test_a_held_out_test_split_is_watched_and_decides_nothing(
    make_job: MakeJob, bigram: Any, batches: list[Batch], read_losses: Callable[..., Any]
) -> None:
    system = bigram()
    job = make_job(system=system, held_out=batches[:1], epochs=3, schedule="plateau", patience=1)
    job = replace(job, data=replace(job.data, held_out_split="test"))
    outcome = fit_by_gradient(job)
    assert outcome.progress.epoch == 3
    assert math.isinf(outcome.progress.best)
    assert [line["event"] for line in read_losses(job.run.path)].count("test") == 3
    assert torch.equal(read_tensors(job.run.weights)["table"], system.table)


def test_a_budget_in_minutes_ends_by_the_clock(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(10**6))
    monkeypatch.setattr("lmlab.training.progress.time.perf_counter", lambda: float(next(ticks)))
    job = make_job(epochs=None, minutes=1)
    outcome = fit_by_gradient(job)
    assert outcome.reason == "budget"
    assert outcome.progress.seconds >= 60
    assert outcome.progress.step < 60


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_asked_to_stop_it_ends_the_step_writes_a_checkpoint_and_goes_on_alike(
    make_job: MakeJob,
    bigram: Any,
    read_losses: Callable[[Path], list[dict[str, Any]]],
    number: signal.Signals,
) -> None:
    class Interrupting(bigram):  # type: ignore[misc]
        def loss(self, *args: Any, **words: Any) -> Any:
            if len(self.states) == 5:
                os.kill(os.getpid(), number)
            return super().loss(*args, **words)

    settings: dict[str, Any] = {"epochs": 3, "log_every": 1, "schedule": "cosine"}
    whole = make_job(name="whole", system=bigram(dropout=0.3), **settings)
    fit_by_gradient(whole)
    handler = signal.getsignal(number)
    outcome = fit_by_gradient(make_job(system=Interrupting(dropout=0.3), **settings))
    assert (outcome.reason, outcome.progress.step) == ("interrupted", 6)
    assert signal.getsignal(number) == handler
    job = make_job(system=bigram(dropout=0.3), **settings)
    assert fit_by_gradient(job).reason == "budget"
    assert read_losses(job.run.path) == read_losses(whole.run.path)
    assert len(read_losses(job.run.path)) == 12


@pytest.mark.parametrize("stop", [1, 3, 4, 5, 9])
def test_resumed_anywhere_it_gives_the_same_losses_to_the_bit(
    make_job: MakeJob, bigram: Any, batches: list[Batch], stop: int, read_losses: Callable[..., Any]
) -> None:
    """A checkpoint after `stop` steps, then more steps that are lost, then resumed from it."""
    settings: dict[str, Any] = {
        "schedule": "plateau",
        "learning_rate": 0.3,
        "log_every": 3,
        "evaluate_every": 1,
        "grad_accumulation": 2,
        "held_out": [Batch.collate([[1, 2, 3]], 0)],
    }
    # Batches 1, 2, 4 and 5 go on from the one before, so a checkpoint falls between.
    same = [replace(batches[0], continues_previous=carries) for carries in (False, True, True)]
    carrying = [*same, batches[1], replace(batches[1], continues_previous=True), *batches[2:]]

    def job(name: str, **more: Any) -> FitJob:
        system = bigram(dropout=0.5)
        return make_job(name=name, system=system, train=carrying, **settings, **more)

    whole = job("whole", epochs=5)
    fit_by_gradient(whole)
    rates = {line.get("learning_rate") for line in read_losses(whole.run.path)}
    assert len(rates) > 4, "the plateau schedule should have acted"

    class Killed(BaseException):
        pass

    begun = job("run", epochs=5, checkpoint_steps=stop)
    made = begun.run.checkpoints_folder

    def die_after(*args: Any, **words: Any) -> None:
        report(*args, **words)
        if (made / f"step-{stop}").exists():
            raise Killed

    report = begun.reporter.step
    begun.reporter.step = die_after  # type: ignore[method-assign]
    with pytest.raises(Killed):
        fit_by_gradient(begun)
    resumed = job("run", epochs=5)
    fit_by_gradient(resumed)
    assert read_losses(resumed.run.path) == read_losses(whole.run.path)
    ours, theirs = (read_tensors(each.run.weights) for each in (resumed, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_finished_training_goes_on_with_a_larger_budget_only(
    make_job: MakeJob, read_losses: Callable[..., Any]
) -> None:
    whole = make_job(name="whole", epochs=4)
    fit_by_gradient(whole)
    fit_by_gradient(make_job(epochs=2))
    assert fit_by_gradient(make_job(epochs=2)).reason == "nothing"
    longer = make_job(epochs=4)
    assert fit_by_gradient(longer).progress.epoch == 4
    assert read_losses(longer.run.path) == read_losses(whole.run.path)


def test_what_happens_between_steps_does_not_change_a_training(
    make_job: MakeJob, bigram: Any, batches: list[Batch]
) -> None:
    plain, watched = bigram(dropout=0.5), bigram(dropout=0.5)
    fit_by_gradient(make_job(name="a", system=plain, epochs=2))
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    settings = {"evaluate_every": 1, "log_every": 1, "checkpoint_steps": 1}
    fit_by_gradient(make_job(name="b", system=watched, epochs=2, held_out=batches[:2], **settings))
    assert torch.equal(plain.table, watched.table)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_seeds_differ(make_job: MakeJob, bigram: Any) -> None:
    first, second = bigram(dropout=0.5), bigram(dropout=0.5)
    fit_by_gradient(make_job(name="a", system=first, epochs=1, seed=1))
    fit_by_gradient(make_job(name="b", system=second, epochs=1, seed=2))
    assert not torch.equal(first.table, second.table)


def test_a_compiled_step_is_the_same_step(
    make_job: MakeJob, bigram: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captured by torch and run from its graph, but not translated, which takes a minute."""
    asked, compiler = [], torch.nn.Module.compile

    def capture(module: torch.nn.Module, **options: Any) -> None:
        asked.append(options)
        compiler(module, backend="eager", **options)

    monkeypatch.setattr(torch.nn.Module, "compile", capture)
    eager, compiled = bigram(), bigram()
    fit_by_gradient(make_job(name="a", system=eager, epochs=2, **SGD))
    fit_by_gradient(make_job(name="b", system=compiled, epochs=2, compile=True, **SGD))
    assert asked == [{"dynamic": True}]
    torch.testing.assert_close(compiled.table, eager.table)


def test_a_hangup_that_is_ignored_stays_ignored(make_job: MakeJob, bigram: Any) -> None:
    class HungUp(bigram):  # type: ignore[misc]
        def loss(self, *args: Any, **words: Any) -> Any:
            os.kill(os.getpid(), signal.SIGHUP)
            return super().loss(*args, **words)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert fit_by_gradient(make_job(system=HungUp(), epochs=1)).reason == "budget"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_of_two_budgets_the_first_to_end_ends_it(make_job: MakeJob) -> None:
    for settings, steps in (({"epochs": 2, "steps": 3}, 3), ({"epochs": 1, "minutes": 60.0}, 4)):
        outcome = fit_by_gradient(make_job(name=f"run-{steps}", **settings))
        assert (outcome.reason, outcome.progress.step) == ("budget", steps)
    made = make_job(name="late", epochs=9, minutes=1e-9)
    assert fit_by_gradient(made).progress.step == 1


class Lengthening:
    """A judge whose figure falls and rises again, whatever the system: 3, 1, 2, 4 …"""

    name = "merit"

    def __init__(self) -> None:
        self.figures = iter([3.0, 1.0, 2.0, 4.0, 0.0])

    def __call__(self, system: Any) -> float:
        system.eval()
        return next(self.figures)


def test_weights_are_kept_by_the_judge_where_there_is_one(
    make_job: MakeJob, bigram: Any, batches: list[Batch], read_losses: Any
) -> None:
    system = bigram()
    job = make_job(system=system, train=batches, held_out=batches[:1], epochs=4, **SGD)
    outcome = fit_by_gradient(replace(job, metric=Lengthening()))
    lines = [line for line in read_losses(job.run.path) if line["event"] == "validation"]
    assert [line["merit"] for line in lines] == [3.0, 1.0, 2.0, 4.0]
    assert outcome.progress.best_score == -4.0
    assert outcome.progress.best == lines[3]["loss"]
    torch.testing.assert_close(read_tensors(job.run.weights)["table"], system.table.detach())


@pytest.mark.parametrize("better", [True, False])
def test_the_last_weights_are_averaged_and_kept_if_they_are_better(
    make_job: MakeJob, bigram: Any, batches: list[Batch], read_losses: Any, better: bool
) -> None:
    system, seen = bigram(), []

    class Rising(Lengthening):
        def __call__(self, noted: Any) -> float:
            seen.append(noted.table.detach().clone())
            return len(seen) if better else -len(seen)

    job = make_job(system=system, train=batches, held_out=batches[:1], epochs=4, average=2, **SGD)
    fit_by_gradient(replace(job, metric=Rising()))
    *each, average = seen
    assert len(each) == 4
    torch.testing.assert_close(average, torch.stack(each[-2:]).mean(0))
    kept = average if better else each[0]
    torch.testing.assert_close(read_tensors(job.run.weights)["table"], kept)
    assert list(job.run.checkpoints_folder.glob("weights-*")) == []
    [line] = [each for each in read_losses(job.run.path) if each["event"] == "average"]
    assert (line["step"], line["merit"]) == (16, 5 if better else -5)
    # Resumed, nothing is averaged again.
    assert fit_by_gradient(replace(job, metric=Rising())).reason == "nothing"
    assert len(seen) == 5


def test_an_average_that_is_better_does_not_undo_early_stopping(
    make_job: MakeJob, batches: list[Batch]
) -> None:
    class Falling(Lengthening):
        def __init__(self) -> None:
            self.figures = iter([4.0, 3.0, 2.0, 9.0])  # the last is the average's

    settings = {"epochs": 9, "average": 2, "patience": 2, **SGD}
    job = make_job(train=batches, held_out=batches[:1], **settings)
    outcome = fit_by_gradient(replace(job, metric=Falling()))
    assert (outcome.reason, outcome.progress.best_score) == ("early", -9.0)
    again = fit_by_gradient(replace(job, metric=Falling()))
    assert (again.reason, again.progress.best_score) == ("nothing", -9.0)


class Killed(BaseException):
    """Stands for a kill: nothing after it happens."""


def test_a_kill_at_any_write_at_the_end_of_an_averaged_training_changes_nothing(
    make_job: MakeJob,
    bigram: Any,
    batches: list[Batch],
    read_losses: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # So large a rate that weights leap about the minimum: an average of three is better than one
    # of the last two (what is left in the midst of the clean-up), and that than any by themselves.
    settings = {**SGD, "learning_rate": 20.0, "epochs": 3, "evaluate_every": 3, "average": 3}
    given = {"train": batches, "held_out": batches, "checkpoint_steps": 5, **settings}
    whole = make_job(name="whole", **given)
    calls, kill_at = [0], [10**9]

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **words: Any) -> Any:
            calls[0] += 1
            if calls[0] == kill_at[0]:
                raise Killed
            return original(*args, **words)

        return call

    monkeypatch.setattr(os, "fsync", lambda handle: None)  # slow, and no power is cut here
    for name in ("replace", "rename", "unlink"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    best = fit_by_gradient(whole).progress.best
    kept, lines = read_tensors(whole.run.weights)["table"], read_losses(whole.run.path)
    assert lines[-1]["event"] == "average"
    assert (
        lines[-1]["loss"]
        == best
        < min(line["loss"] for line in lines if line["event"] == "validation")
    )
    writes = calls[0]
    for number in range(writes - 30, writes + 1):  # from the second last checkpoint to the end
        calls[0], kill_at[0] = 0, number
        job = make_job(name=f"killed-{number}", **given)
        with pytest.raises(Killed):
            fit_by_gradient(job)
        kill_at[0] = 10**9
        again = make_job(name=f"killed-{number}", **given)
        assert fit_by_gradient(again).progress.best == best
        torch.testing.assert_close(read_tensors(job.run.weights)["table"], kept, rtol=0, atol=0)
        assert read_losses(job.run.path) == lines
        assert not list(job.run.checkpoints_folder.glob("weights-*"))
