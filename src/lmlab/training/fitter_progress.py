"""Checkpoints of fitters with an optimiser of their own or none: counting, EM, word2vec, GloVe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lmlab.training.checkpoints import Checkpoint, restoring
from lmlab.training.loop import FitJob
from lmlab.training.optimizers import LearningRateSchedule
from lmlab.training.progress import Progress


def save_progress(
    job: FitJob,
    progress: Progress,
    schedule: LearningRateSchedule | None = None,
    optimizer: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a checkpoint of a fitter with an optimiser of its own, or none."""
    if job.accelerator.is_main_process:
        state: dict[str, Any] = {"progress": progress.state()}
        state |= {} if schedule is None else {"schedule": schedule.state()}
        model = job.system.state_dict()
        job.run.save_checkpoint(
            Checkpoint(
                step=progress.step, state=state, model=model, optimizer=dict(optimizer or {})
            )
        )
    job.accelerator.wait_for_everyone()


def restore_progress(
    job: FitJob,
    schedule: LearningRateSchedule | None = None,
    optimizer: Mapping[str, Tensor] | None = None,
) -> Progress:
    """Restore the last checkpoint of `save_progress`, if there is one, and drop later metrics.

    The tensors of `optimizer` are overwritten.
    """
    checkpoint = job.run.load_checkpoint(job.reporter.print_message)
    job.reporter.begin(after=0 if checkpoint is None else checkpoint.step)
    if checkpoint is None:
        return Progress()
    with restoring(job.run.checkpoints_folder):
        job.system.load_state_dict(checkpoint.model)
        if schedule is not None:
            schedule.restore(checkpoint.state["schedule"])
        for name, tensor in (optimizer or {}).items():
            tensor.copy_(checkpoint.optimizer[name])
        return Progress.restored(checkpoint.state["progress"])
