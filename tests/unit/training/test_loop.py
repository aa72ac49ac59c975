from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator
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
from lmlab.training.progress import CLOCKS

MakeJob = Callable[..., FitJob]
SGD = {"optimizer": "sgd", "learning_rate": 0.5, "grad_clip": 0.0}


def test_step_uses_gradient_of_total_over_count(
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


def test_gradient_accumulation_equals_one_large_batch(
    make_job: MakeJob, bigram: Any, batches: list[Batch]
) -> None:
    whole, large_batch_system, accumulating_system = batches[2], bigram(), bigram()
    parts = [whole.select([0]), whole.select([1, 2, 3, 4, 5])]
    fit_by_gradient(make_job(name="a", system=large_batch_system, train=[whole], epochs=4, **SGD))
    job = make_job(
        name="b", system=accumulating_system, train=parts, epochs=4, grad_accumulation=2, **SGD
    )
    outcome = fit_by_gradient(job)
    assert (outcome.progress.step, outcome.progress.epoch) == (4, 4)
    torch.testing.assert_close(accumulating_system.table, large_batch_system.table)


def test_last_accumulation_step_of_an_epoch_may_be_smaller(
    make_job: MakeJob, batches: list[Batch]
) -> None:
    outcome = fit_by_gradient(make_job(epochs=2, grad_accumulation=3))
    assert len(batches) == 4
    assert (outcome.progress.step, outcome.progress.epoch) == (4, 2)


def test_gradient_clipping_scales_only_larger_norms() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))]
    for clip, kept in ((1.0, 1 / 5.0), (0.0, 1.0), (7.0, 1.0)):
        parameters[0].grad = torch.tensor([30.0, 0.0])
        parameters[1].grad = torch.tensor([40.0])
        # Scaled by a tenth: (3, 0, 4) has norm 5.
        assert clip_gradients(parameters, 0.1, clip) == pytest.approx(5.0)
        torch.testing.assert_close(parameters[0].grad, torch.tensor([3.0 * kept, 0.0]))
        torch.testing.assert_close(parameters[1].grad, torch.tensor([4.0 * kept]))


def test_contiguous_state_is_carried_detached_and_reset(make_job: MakeJob, bigram: Any) -> None:
    first = Batch.collate([[5, 6, 7], [6, 7, 5]], 0)
    second = Batch.collate([[7, 5, 6, 7], [5, 6, 5, 5]], 0, continues_previous=True)
    system = bigram()
    fit_by_gradient(make_job(system=system, train=[first, second], epochs=2))
    seen = [None if state is None else state["seen"].tolist() for state in system.states]
    assert seen == [None, [2.0, 2.0], None, [2.0, 2.0]]
    assert all(state is None or not state["seen"].requires_grad for state in system.states)


def test_logged_loss_averages_steps_since_the_last_line(
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


def test_non_finite_loss_stops_before_the_update(make_job: MakeJob, bigram: Any) -> None:
    system = bigram()
    system.poison_at = 6
    job = make_job(system=system, epochs=5, checkpoint_steps=5)
    with pytest.raises(UserError, match=r"not finite at step 7 \(epoch 2\).*learning_rate"):
        fit_by_gradient(job)
    assert torch.isfinite(system.table).all()
    assert [path.name for path in job.run.checkpoints_folder.iterdir()] == ["step-5"]


def test_best_weights_are_saved_and_patience_stops_training(make_job: MakeJob, bigram: Any) -> None:
    # Trained on 5 → 6 only, with half of the held-out text 5 → 7: the loss falls, then rises.
    train = [Batch.collate([[5, 6]] * 4, 0)]
    held_out = [Batch.collate([[5, 6], [5, 7]], 0)]
    system = bigram()
    with torch.no_grad():
        system.table.zero_()
        system.table[5, 6] = -2.0
    validations = []
    job = make_job(system=system, train=train, held_out=held_out, epochs=200, patience=3, **SGD)
    report = job.reporter.report_validation

    def note(progress: Any, evaluation: Any, split: str, *more: Any) -> None:
        validations.append((evaluation.loss, system.table.detach().clone()))
        report(progress, evaluation, split, *more)

    job.reporter.report_validation = note  # type: ignore[method-assign]
    outcome = fit_by_gradient(job)
    best = min(range(len(validations)), key=lambda index: validations[index][0])
    assert outcome.reason == "early"
    assert 0 < best == len(validations) - 4
    assert outcome.progress.best == validations[best][0]
    torch.testing.assert_close(read_tensors(job.run.weights)["table"], validations[best][1])


def test_last_weights_are_saved_without_validation(make_job: MakeJob, bigram: Any) -> None:
    system = bigram()
    job = make_job(system=system, epochs=2)
    fit_by_gradient(job)
    assert torch.equal(read_tensors(job.run.weights)["table"], system.table)


def test_test_split_is_logged_but_does_not_select(
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


def test_minute_budget_stops_training(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10**6))
    monkeypatch.setitem(CLOCKS, "wall", lambda: float(next(ticks)))
    job = make_job(epochs=None, minutes=1)
    outcome = fit_by_gradient(job)
    assert outcome.reason == "budget"
    assert outcome.progress.seconds >= 60
    assert outcome.progress.step < 60


@pytest.fixture
def heard(number: signal.Signals) -> Iterator[None]:
    """A signal that is not ignored, as SIGHUP is under nohup, where it stops no training."""
    before = signal.getsignal(number)
    if before is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
    yield
    signal.signal(number, before)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stop_signal_saves_a_checkpoint_and_resumes_identically(
    make_job: MakeJob,
    bigram: Any,
    read_losses: Callable[[Path], list[dict[str, Any]]],
    number: signal.Signals,
) -> None:
    class Interrupting(bigram):  # type: ignore[misc]
        def loss(self, *args: Any, **kwargs: Any) -> Any:
            if len(self.states) == 5:
                os.kill(os.getpid(), number)
            return super().loss(*args, **kwargs)

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
def test_resume_at_any_step_gives_identical_losses(
    make_job: MakeJob, bigram: Any, batches: list[Batch], stop: int, read_losses: Callable[..., Any]
) -> None:
    """A checkpoint after `stop` steps, then lost steps, then a resume from the checkpoint."""
    settings: dict[str, Any] = {
        "schedule": "plateau",
        "learning_rate": 0.3,
        "log_every": 3,
        "evaluate_every": 1,
        "grad_accumulation": 2,
        "held_out": [Batch.collate([[1, 2, 3]], 0)],
    }
    # Some batches continue the one before, so a checkpoint falls between them.
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

    interrupted = job("run", epochs=5, checkpoint_steps=stop)
    checkpoints = interrupted.run.checkpoints_folder

    def die_after(*args: Any, **kwargs: Any) -> None:
        report(*args, **kwargs)
        if (checkpoints / f"step-{stop}").exists():
            raise Killed

    report = interrupted.reporter.step
    interrupted.reporter.step = die_after  # type: ignore[method-assign]
    with pytest.raises(Killed):
        fit_by_gradient(interrupted)
    resumed = job("run", epochs=5)
    fit_by_gradient(resumed)
    assert read_losses(resumed.run.path) == read_losses(whole.run.path)
    ours, theirs = (read_tensors(each.run.weights) for each in (resumed, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_finished_training_continues_only_with_larger_budget(
    make_job: MakeJob, read_losses: Callable[..., Any]
) -> None:
    whole = make_job(name="whole", epochs=4)
    fit_by_gradient(whole)
    fit_by_gradient(make_job(epochs=2))
    assert fit_by_gradient(make_job(epochs=2)).reason == "nothing"
    longer = make_job(epochs=4)
    assert fit_by_gradient(longer).progress.epoch == 4
    assert read_losses(longer.run.path) == read_losses(whole.run.path)


def test_evaluation_and_logging_do_not_affect_training(
    make_job: MakeJob, bigram: Any, batches: list[Batch]
) -> None:
    plain, evaluated = bigram(dropout=0.5), bigram(dropout=0.5)
    fit_by_gradient(make_job(name="a", system=plain, epochs=2))
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    settings = {"evaluate_every": 1, "log_every": 1, "checkpoint_steps": 1}
    fit_by_gradient(
        make_job(name="b", system=evaluated, epochs=2, held_out=batches[:2], **settings)
    )
    assert torch.equal(plain.table, evaluated.table)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_different_seeds_give_different_weights(make_job: MakeJob, bigram: Any) -> None:
    first, second = bigram(dropout=0.5), bigram(dropout=0.5)
    fit_by_gradient(make_job(name="a", system=first, epochs=1, seed=1))
    fit_by_gradient(make_job(name="b", system=second, epochs=1, seed=2))
    assert not torch.equal(first.table, second.table)


def test_compiled_step_equals_eager_step(
    make_job: MakeJob, bigram: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced by torch.compile with the eager backend, since code generation takes a minute."""
    compile_options, compiler = [], torch.nn.Module.compile

    def capture(module: torch.nn.Module, **options: Any) -> None:
        compile_options.append(options)
        compiler(module, backend="eager", **options)

    monkeypatch.setattr(torch.nn.Module, "compile", capture)
    eager, compiled = bigram(), bigram()
    fit_by_gradient(make_job(name="a", system=eager, epochs=2, **SGD))
    fit_by_gradient(make_job(name="b", system=compiled, epochs=2, compile=True, **SGD))
    assert compile_options == [{"dynamic": True}]
    torch.testing.assert_close(compiled.table, eager.table)


def test_ignored_sighup_stays_ignored(make_job: MakeJob, bigram: Any) -> None:
    class HungUp(bigram):  # type: ignore[misc]
        def loss(self, *args: Any, **kwargs: Any) -> Any:
            os.kill(os.getpid(), signal.SIGHUP)
            return super().loss(*args, **kwargs)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert fit_by_gradient(make_job(system=HungUp(), epochs=1)).reason == "budget"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_first_exhausted_budget_stops_training(make_job: MakeJob) -> None:
    for settings, steps in (({"epochs": 2, "steps": 3}, 3), ({"epochs": 1, "minutes": 60.0}, 4)):
        outcome = fit_by_gradient(make_job(name=f"run-{steps}", **settings))
        assert (outcome.reason, outcome.progress.step) == ("budget", steps)
    made = make_job(name="late", epochs=9, minutes=1e-9)
    assert fit_by_gradient(made).progress.step == 1


class ScriptedMetric:
    """A metric that falls and rises again, whatever the system: 3, 1, 2, 4 …"""

    name = "merit"

    def __init__(self) -> None:
        self.values = iter([3.0, 1.0, 2.0, 4.0, 0.0])

    def __call__(self, system: Any) -> float:
        system.eval()
        return next(self.values)


def test_weights_are_selected_by_the_given_metric(
    make_job: MakeJob, bigram: Any, batches: list[Batch], read_losses: Any
) -> None:
    system = bigram()
    job = make_job(system=system, train=batches, held_out=batches[:1], epochs=4, **SGD)
    outcome = fit_by_gradient(replace(job, metric=ScriptedMetric()))
    lines = [line for line in read_losses(job.run.path) if line["event"] == "validation"]
    assert [line["merit"] for line in lines] == [3.0, 1.0, 2.0, 4.0]
    assert outcome.progress.best_score == -4.0
    assert outcome.progress.best == lines[3]["loss"]
    torch.testing.assert_close(read_tensors(job.run.weights)["table"], system.table.detach())


@pytest.mark.parametrize("better", [True, False])
def test_weight_average_is_saved_if_better(
    make_job: MakeJob, bigram: Any, batches: list[Batch], read_losses: Any, better: bool
) -> None:
    system, tables = bigram(), []

    class Rising(ScriptedMetric):
        def __call__(self, evaluated: Any) -> float:
            tables.append(evaluated.table.detach().clone())
            return len(tables) if better else -len(tables)

    job = make_job(system=system, train=batches, held_out=batches[:1], epochs=4, average=2, **SGD)
    fit_by_gradient(replace(job, metric=Rising()))
    *each, average = tables
    assert len(each) == 4
    torch.testing.assert_close(average, torch.stack(each[-2:]).mean(0))
    saved = average if better else each[0]
    torch.testing.assert_close(read_tensors(job.run.weights)["table"], saved)
    assert list(job.run.checkpoints_folder.glob("weights-*")) == []
    [line] = [each for each in read_losses(job.run.path) if each["event"] == "average"]
    assert (line["step"], line["merit"]) == (16, 5 if better else -5)
    # Resumed, nothing is averaged again.
    assert fit_by_gradient(replace(job, metric=Rising())).reason == "nothing"
    assert len(tables) == 5


def test_better_average_does_not_undo_early_stopping(
    make_job: MakeJob, batches: list[Batch]
) -> None:
    class Falling(ScriptedMetric):
        def __init__(self) -> None:
            self.values = iter([4.0, 3.0, 2.0, 9.0])  # the last is that of the average

    settings = {"epochs": 9, "average": 2, "patience": 2, **SGD}
    job = make_job(train=batches, held_out=batches[:1], **settings)
    outcome = fit_by_gradient(replace(job, metric=Falling()))
    assert (outcome.reason, outcome.progress.best_score) == ("early", -9.0)
    again = fit_by_gradient(replace(job, metric=Falling()))
    assert (again.reason, again.progress.best_score) == ("nothing", -9.0)


class Killed(BaseException):
    """Stands for a kill: nothing runs after it."""


def test_kill_during_weight_averaging_resumes_identically(
    make_job: MakeJob,
    bigram: Any,
    batches: list[Batch],
    read_losses: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A learning rate so large that weights oscillate around the minimum: an average of three is
    # better than one of the last two (what is left during the clean-up), and that than any one.
    settings = {**SGD, "learning_rate": 20.0, "epochs": 3, "evaluate_every": 3, "average": 3}
    options = {"train": batches, "held_out": batches, "checkpoint_steps": 5, **settings}
    whole = make_job(name="whole", **options)
    calls, kill_at = [0], [10**9]

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] == kill_at[0]:
                raise Killed
            return original(*args, **kwargs)

        return call

    monkeypatch.setattr(os, "fsync", lambda handle: None)  # slow, and no power is cut here
    for name in ("replace", "rename", "unlink"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    best = fit_by_gradient(whole).progress.best
    saved, lines = read_tensors(whole.run.weights)["table"], read_losses(whole.run.path)
    assert lines[-1]["event"] == "average"
    assert (
        lines[-1]["loss"]
        == best
        < min(line["loss"] for line in lines if line["event"] == "validation")
    )
    writes = calls[0]
    for number in range(writes - 30, writes + 1):  # from the second last checkpoint to the end
        calls[0], kill_at[0] = 0, number
        job = make_job(name=f"killed-{number}", **options)
        with pytest.raises(Killed):
            fit_by_gradient(job)
        kill_at[0] = 10**9
        again = make_job(name=f"killed-{number}", **options)
        assert fit_by_gradient(again).progress.best == best
        torch.testing.assert_close(read_tensors(job.run.weights)["table"], saved, rtol=0, atol=0)
        assert read_losses(job.run.path) == lines
        assert not list(job.run.checkpoints_folder.glob("weights-*"))
