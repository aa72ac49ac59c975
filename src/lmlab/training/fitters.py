"""Fitting algorithms behind one interface: `FITTERS[system.fitting](job)`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lmlab.core.protocols import Countable, ExpectationMaximisation
from lmlab.training.checkpoints import Checkpoint, restoring
from lmlab.training.data_loaders import TrainingData
from lmlab.training.distributed import shard_batch
from lmlab.training.loop import FitJob, FitResult, fit_by_gradient, save_weights
from lmlab.training.progress import Budget, Progress, StopSignals, TrainingClock
from lmlab.training.validation import held_out_loss
from lmlab.training.word2vec_fitter import fit_word2vec

MIN_EM_GAIN = 1e-5
"""Convergence threshold of EM, in nats per token."""
EM_ROUNDING = 1e-4
"""Nats per token by which single precision may appear to lower the likelihood."""


def fit_by_counting(job: FitJob) -> FitResult:
    """Count-based estimation: one pass over the training split, repeated by every process."""
    assert isinstance(job.system, Countable), "fitting by counting needs fit_counts"
    progress, clock = Progress(), TrainingClock()
    counted = job.run.has_weights()
    job.accelerator.wait_for_everyone()  # all have checked before the first one writes
    if counted:
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
        trained = held_out_loss(job.system, job.data.train, job.accelerator)
        job.reporter.write("train", progress, loss=trained.loss, count=trained.count)
        loss = _watch(job, progress)
        save_weights(job)
    return FitResult(progress=progress, reason="budget", loss=loss)


def fit_by_em(job: FitJob) -> FitResult:
    """Expectation-maximisation (Dempster, Laird and Rubin 1977), one iteration per epoch.

    The training likelihood never falls; iterations end when it gains less than 1e-5 nats per token.
    """
    system = job.system
    assert isinstance(system, ExpectationMaximisation), "fitting by EM needs expect and maximise"
    system.to(job.accelerator.device)
    progress, budget = _restore(job), Budget(job.config, per_epoch=1)
    if budget.is_over(progress) or progress.stale_validations:
        save_weights(job, replace=False)
        return FitResult(progress=progress, reason="nothing")
    clock, loss, saved_at, asked = TrainingClock(progress.seconds), None, progress.seconds, False
    with job.reporter, StopSignals() as signals, torch.no_grad():
        while not (budget.is_over(progress) or progress.stale_validations or asked):
            # E-step: expected counts over all batches and processes; M-step: the best parameters
            # given them.
            system.maximise(accumulate_expected_counts(job))

            # The loss of the new parameters: it never rises.
            trained = held_out_loss(system, job.data.train, job.accelerator)
            before, progress.best = progress.best, trained.loss
            assert trained.loss <= before + EM_ROUNDING, f"EM went from {before} to {trained.loss}"
            progress.stale_validations = int(before - trained.loss < MIN_EM_GAIN)
            progress.step, progress.epoch = progress.step + 1, progress.epoch + 1
            progress.seconds = clock.seconds()
            job.reporter.write("train", progress, loss=trained.loss, count=trained.count)
            loss = _watch(job, progress)
            job.reporter.show(progress, budget)

            asked = signals.stop_requested
            ending = asked or progress.stale_validations or budget.is_over(progress)
            if ending or budget.checkpoint_due(progress, saved_at):
                _save(job, progress)
                saved_at = progress.seconds
    save_weights(job)
    reason = (
        "early"
        if progress.stale_validations
        else "budget"
        if budget.is_over(progress)
        else "interrupted"
    )
    return FitResult(progress=progress, reason=reason, loss=loss)


def accumulate_expected_counts(job: FitJob) -> dict[str, Tensor]:
    """E-step: the expected counts of a pass over the training split, in double precision."""
    assert isinstance(job.system, ExpectationMaximisation)
    sums: dict[str, Tensor] = {}
    for whole in job.data.train.epoch(0):
        batch = shard_batch(whole, job.accelerator)
        counts = {} if batch is None else job.system.expect(batch)
        for name, value in counts.items():
            value = value if value.device.type == "mps" else value.double()
            sums[name] = sums[name] + value if name in sums else value
    if job.accelerator.num_processes == 1:
        return sums
    return {name: job.accelerator.reduce(value, reduction="sum") for name, value in sums.items()}


def _watch(job: FitJob, progress: Progress) -> float | None:
    if job.data.held_out is None:
        return None
    held_out = held_out_loss(job.system, job.data.held_out, job.accelerator)
    job.reporter.report_validation(progress, held_out, str(job.data.held_out_split))
    return held_out.loss


def _save(job: FitJob, progress: Progress) -> None:
    if job.accelerator.is_main_process:
        state = {"progress": progress.state()}
        model = job.system.state_dict()
        job.run.save_checkpoint(Checkpoint(step=progress.step, state=state, model=model))
    job.accelerator.wait_for_everyone()


def _restore(job: FitJob) -> Progress:
    checkpoint = job.run.load_checkpoint(job.reporter.print_message)
    job.reporter.begin(after=0 if checkpoint is None else checkpoint.step)
    if checkpoint is None:
        return Progress()
    with restoring(job.run.checkpoints_folder):
        job.system.load_state_dict(checkpoint.model)
        return Progress.restored(checkpoint.state["progress"])


FITTERS: dict[str, Callable[[FitJob], FitResult]] = {
    "gradient": fit_by_gradient,
    "counting": fit_by_counting,
    "em": fit_by_em,
    "words": fit_word2vec,
}
