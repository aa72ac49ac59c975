"""Fitting methods by name (gradient, counting, EM, word2vec, GloVe); counting and EM themselves."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lmlab.core.protocols import Countable, ExpectationMaximisation
from lmlab.training.data_loaders import TrainingData
from lmlab.training.distributed import shard_batch
from lmlab.training.fitter_progress import restore_progress, save_progress
from lmlab.training.loop import FitJob, FitResult, fit_by_gradient, save_weights
from lmlab.training.progress import Budget, Progress, StopSignals, TrainingClock
from lmlab.training.stopping import ValidationCourse
from lmlab.training.validation import held_out_loss

MIN_EM_GAIN = 1e-5
"""Convergence threshold of EM, in nats per token."""
EM_ROUNDING = 1e-4
"""Nats per token by which single precision may appear to lower the likelihood."""


def fit_by_counting(job: FitJob) -> FitResult:
    """Count-based estimation: one pass over the training split, repeated by every process."""
    assert isinstance(job.system, Countable), "fitting by counting needs fit_counts"
    progress, clock = Progress(), TrainingClock(clock=job.config.clock)
    already_fitted = job.run.has_weights()
    job.accelerator.wait_for_everyone()  # all have checked before the first one writes
    if already_fitted:
        return FitResult(progress=Progress(step=1, epoch=1), reason="nothing")
    job.reporter.begin(after=0)
    with job.reporter:
        assert isinstance(job.data, TrainingData), "counting reads a corpus"
        note = job.system.fit_counts(*job.data.flat())
        if note:
            job.reporter.print_message(note)
        job.system.to(job.accelerator.device)
        progress.step = progress.epoch = 1
        progress.seconds = clock.seconds()
        train = held_out_loss(job.system, job.data.train, job.accelerator)
        job.reporter.write("train", progress, loss=train.loss, count=train.count)
        loss = _validate(job, progress)
        save_weights(job)
    return FitResult(progress=progress, reason="budget", loss=loss)


def fit_by_em(job: FitJob) -> FitResult:
    """Expectation-maximisation (Dempster, Laird and Rubin 1977), one iteration per epoch.

    The training likelihood never falls; iterations end when it gains less than 1e-5 nats per token.
    """
    system = job.system
    assert isinstance(system, ExpectationMaximisation), "fitting by EM needs expect and maximise"
    system.to(job.accelerator.device)
    progress, budget = restore_progress(job), Budget(job.config, per_epoch=1)
    if budget.is_over(progress) or progress.stale_validations:
        save_weights(job, replace=False)
        return FitResult(progress=progress, reason="nothing")
    course = ValidationCourse.of_run(
        job.stopping_rule, job.run.metrics, job.data.held_out_split, progress.step
    )
    if course.ends:  # killed between its last checkpoint and its end
        save_weights(job, replace=False)
        return FitResult(progress=progress, reason="pruned")
    clock = TrainingClock(progress.seconds, clock=job.config.clock)
    loss, saved_at, stop = None, progress.seconds, False
    with job.reporter, StopSignals() as signals, torch.no_grad():
        while not (budget.is_over(progress) or progress.stale_validations or stop):
            # E-step: expected counts over all batches and processes; M-step: the best parameters
            # given them.
            system.maximise(accumulate_expected_counts(job))

            # The loss of the new parameters: it never rises.
            train = held_out_loss(system, job.data.train, job.accelerator)
            previous, progress.best = progress.best, train.loss
            assert train.loss <= previous + EM_ROUNDING, f"EM went from {previous} to {train.loss}"
            progress.stale_validations = int(previous - train.loss < MIN_EM_GAIN)
            progress.step, progress.epoch = progress.step + 1, progress.epoch + 1
            progress.seconds = clock.seconds()
            job.reporter.write("train", progress, loss=train.loss, count=train.count)
            loss = _validate(job, progress)
            if loss is not None:
                course.record(loss)
            job.reporter.show(progress, budget)

            stop = signals.stop_requested or course.ends
            ending = stop or progress.stale_validations or budget.is_over(progress)
            if ending or budget.checkpoint_due(progress, saved_at):
                save_progress(job, progress)
                saved_at = progress.seconds
    save_weights(job)
    reason = "pruned" if course.ends else "interrupted"
    reason = "budget" if budget.is_over(progress) else reason
    reason = "early" if progress.stale_validations else reason
    return FitResult(progress=progress, reason=reason, loss=loss)


def accumulate_expected_counts(job: FitJob) -> dict[str, Tensor]:
    """E-step: the expected counts of a pass over the training split, in double precision."""
    assert isinstance(job.system, ExpectationMaximisation)
    totals: dict[str, Tensor] = {}
    for full_batch in job.data.train.epoch(0):
        batch = shard_batch(full_batch, job.accelerator)
        counts = {} if batch is None else job.system.expect(batch)
        for name, value in counts.items():
            value = value if value.device.type == "mps" else value.double()
            totals[name] = totals[name] + value if name in totals else value
    if job.accelerator.num_processes == 1:
        return totals
    return {name: job.accelerator.reduce(value, reduction="sum") for name, value in totals.items()}


def _validate(job: FitJob, progress: Progress) -> float | None:
    if job.data.held_out is None:
        return None
    held_out = held_out_loss(job.system, job.data.held_out, job.accelerator)
    job.reporter.report_validation(progress, held_out, str(job.data.held_out_split))
    return held_out.loss


def fit_words(job: FitJob) -> FitResult:
    """Word2vec, see `fit_word2vec`; imported when it is used."""
    from lmlab.training.word2vec_fitter import fit_word2vec

    return fit_word2vec(job)


def fit_cooccurrences(job: FitJob) -> FitResult:
    """GloVe, see `fit_glove`; imported when it is used."""
    from lmlab.training.glove_fitter import fit_glove

    return fit_glove(job)


FITTERS: dict[str, Callable[[FitJob], FitResult]] = {
    "gradient": fit_by_gradient,
    "counting": fit_by_counting,
    "em": fit_by_em,
    "words": fit_words,
    "cooccurrence": fit_cooccurrences,
}
