"""Gradient training loop: accumulation, clipping, validation, model selection, checkpoints."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from lmlab.core.errors import UserError
from lmlab.core.state import State
from lmlab.core.system import System
from lmlab.training.checkpoints import (
    Checkpoint,
    optimizer_tensors,
    restore_optimizer,
    restoring,
    state_from_tensors,
    state_to_tensors,
)
from lmlab.training.config import TrainingConfig
from lmlab.training.data_loaders import BatchLoader, FitData, gradient_accumulation_groups
from lmlab.training.distributed import (
    all_reduce_gradients,
    all_reduce_sum,
    gather_rows,
    local_rows,
    seed_step,
    shard_batch,
)
from lmlab.training.optimizers import LearningRateSchedule, build_optimizer, set_learning_rate
from lmlab.training.progress import Budget, Progress, StopSignals, TrainingClock
from lmlab.training.run_folder import RunFolder
from lmlab.training.sharding import (
    ShardedLoss,
    full_tensors,
    is_sharded,
    load_whole_state,
    norm_of,
    shard_system,
    whole_weights,
)
from lmlab.training.snapshots import save_snapshot
from lmlab.training.stopping import ValidationCourse, non_finite_error
from lmlab.training.train_options import StoppingRule
from lmlab.training.training_logs import (
    NOT_FINITE,
    RETRIEVED_EVENT,
    Reporter,
    index_recall,
    retrieved_documents,
)
from lmlab.training.validation import held_out_loss
from lmlab.training.weight_averaging import (
    average_weights,
    remove_averaging_weights,
    save_averaging_weights,
)
from lmlab.training.weight_statistics import UpdateMonitor


class ValidationMetric(Protocol):
    """Validation metric of a system, higher is better (BLEU on the validation split)."""

    name: str

    def __call__(self, system: System) -> float: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class FitJob:
    """Arguments of a fitter."""

    system: System
    data: FitData
    config: TrainingConfig
    run: RunFolder
    accelerator: Accelerator
    reporter: Reporter
    metric: ValidationMetric | None = None
    """Validation metric for model selection, where it is not the loss."""
    stopping_rule: StoppingRule | None = None
    """Ends the training by its validation losses so far."""
    trainee: System | None = None
    """What gradient descent optimises, if it is not the system alone; see `trainees`."""

    @property
    def optimised(self) -> System:
        """What gradient descent optimises, which checkpoints hold."""
        return self.system if self.trainee is None else self.trainee


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """Result of a fit."""

    progress: Progress
    reason: str
    """budget, early (early stopping), pruned (by the stopping rule), interrupted, or nothing (it
    was finished before)."""
    loss: float | None = None
    """The last held-out loss, in nats per token."""

    def check_complete(self, run: RunFolder) -> None:
        """A UserError where training was interrupted: a partial result is not evaluated."""
        if self.reason == "interrupted":
            raise UserError(
                f"training was stopped at step {self.progress.step} of {run.path.name}; "
                "continue with --resume."
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Updates:
    """What updates the weights, with a state of its own."""

    model: nn.Module
    """The system, or what shards it."""
    optimizer: torch.optim.Optimizer
    schedule: LearningRateSchedule
    scaler: torch.amp.GradScaler


def fit_by_gradient(job: FitJob) -> FitResult:
    """Minimise the loss by gradient descent, from the last checkpoint if there is one."""
    config, data, accelerator, reporter = job.config, job.data, job.accelerator, job.reporter
    system = job.optimised.to(accelerator.device)
    sharded = config.distributed == "fsdp" and accelerator.num_processes > 1
    model = shard_system(system, accelerator) if sharded else system
    compute_loss = model.loss if isinstance(model, ShardedLoss) else model
    optimizer = build_optimizer(system, config)
    # Scales the loss of float16, whose small gradients would become zero; nothing otherwise.
    scaler = torch.amp.GradScaler(accelerator.device.type, enabled=config.precision == "float16")
    parameters = [p for p in job.optimised.parameters() if p.requires_grad]
    schedule, budget = LearningRateSchedule(config), Budget(config, data.train.batches_per_epoch())
    updates = Updates(model=model, optimizer=optimizer, schedule=schedule, scaler=scaler)
    progress, carried_state = restore_fit_checkpoint(job, updates)
    if budget.is_over(progress):
        if job.config.average and progress.averaged_at_step != progress.step:
            with reporter:  # the budget has become smaller than what was trained
                finish_fit(job, progress, updates, carried_state)
        save_weights(job, replace=False)
        return FitResult(progress=progress, reason="nothing")
    course = ValidationCourse.of_run(
        job.stopping_rule, job.run.metrics, job.data.held_out_split, progress.step
    )
    if course.ends:  # killed between its last checkpoint and its end
        save_weights(job, replace=False)
        return FitResult(progress=progress, reason="pruned")
    clock = TrainingClock(progress.seconds, clock=config.clock)
    last_loss, saved_at = None, progress.seconds
    start = {"epoch": progress.epoch, "position": progress.position}
    monitor = None if sharded else UpdateMonitor(job.system, log_every=config.log_every)
    if config.compile:
        compile_loss(job.optimised)
    model.train()

    with reporter, StopSignals() as signals, torch.random.fork_rng():
        for batches in gradient_accumulation_groups(
            data.train, size=config.grad_accumulation, **start
        ):
            # The randomness of a step depends on the seed and the step's number alone.
            started = clock.seconds()
            generator = seed_step(config.seed, progress.step, accelerator)
            job.optimised.begin_step(progress.step)

            # Gradients of sums, not of means, so that they add up over batches …
            sums = torch.zeros(4, dtype=torch.float64)
            for full_batch in batches:
                batch = shard_batch(full_batch, accelerator)
                if batch is None:
                    if isinstance(model, ShardedLoss):
                        model.take_part(full_batch, generator)
                    continue
                state = carried_state if batch.continues_previous else None
                loss, state = compute_loss(batch, state=state, generator=generator)
                scaler.scale(loss.total).backward()
                # Truncated BPTT: the state is carried to the next batch, its gradient is not.
                carried_state = state.detach() if data.carries_state and state is not None else None
                sums[:2] += torch.stack([loss.total.detach(), loss.count]).cpu().double()

            # … and over processes; the main process's clock and stop requests are reduced along.
            sums[2:] = torch.tensor(
                [signals.stop_requested, accelerator.is_main_process * clock.seconds()]
            )
            total, count, stop, progress.seconds = all_reduce_sum(sums, accelerator)
            if not sharded:  # FSDP has summed them in the backward pass
                all_reduce_gradients(parameters, accelerator)
            scaler.unscale_(optimizer)

            # One division by the total count: never a mean of means.
            norm = clip_gradients(parameters, 1 / max(count, 1), config.grad_clip)
            overflow = scaler.is_enabled() and not math.isfinite(norm)
            if not math.isfinite(total) or not (math.isfinite(norm) or overflow):
                reporter.write(NOT_FINITE, progress)
                raise non_finite_error(progress, total, norm, config)

            # Only a finite gradient updates the weights; an overflow of float16 halves its scale.
            rate = schedule.learning_rate_at(progress.step, budget.fraction_spent(progress))
            set_learning_rate(optimizer, rate)
            if monitor is not None:
                monitor.record_before_step(progress.step + 1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            seconds = clock.seconds() - started
            progress.advance(total, count, seconds, len(batches), budget.per_epoch)

            # Validate on held-out text; only a validation split may decide anything.
            evaluating = budget.evaluation_due(progress) or budget.fraction_spent(progress) >= 1
            reporter.step(
                progress, budget, learning_rate=rate, norm=norm, flush=evaluating, monitor=monitor
            )
            if evaluating and data.held_out is not None:
                last_loss = validate(job, data.held_out, progress, updates)
                course.record(last_loss)

            if progress.position == 0 and progress.epoch in config.snapshot_epochs:
                save_snapshot(job.run, job.system, progress.epoch, job.accelerator)

            # A checkpoint holds all that the next step depends on.
            if budget.is_over(progress):
                finish_fit(job, progress, updates, carried_state)
                break
            if stop > 0 or course.ends or budget.checkpoint_due(progress, saved_at):
                save_fit_checkpoint(job, progress, updates, carried_state)
                saved_at = progress.seconds
            if stop > 0 or course.ends:
                break

    save_weights(job, replace=not data.has_validation)
    reason = "interrupted" if not budget.is_over(progress) else "budget"
    reason = "pruned" if reason == "interrupted" and course.ends else reason
    reason = "early" if budget.early_stopping_due(progress) else reason
    return FitResult(progress=progress, reason=reason, loss=last_loss)


def clip_gradients(parameters: list[torch.nn.Parameter], scale: float, clip: float) -> float:
    """Scale all gradients, then clip them to the norm `clip`; returns the norm before clipping."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return 0.0
    norm = norm_of(torch._foreach_norm(gradients)) * scale
    if clip and math.isfinite(norm) and norm > clip:
        scale = scale * clip / norm
    torch._foreach_mul_(gradients, scale)
    return norm


def compile_loss(system: System) -> None:
    """torch.compile the loss at the first batch; graph breaks run uncompiled."""
    # Silence the warnings with stack traces at every graph break.
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    # Batches differ in length: without dynamic shapes, every length would be recompiled.
    system.compile(dynamic=True)


def validate(job: FitJob, loader: BatchLoader, progress: Progress, updates: Updates) -> float:
    """Compute the held-out loss; on a validation split, save the weights if they are the best."""
    with job.system.refreshed():
        with whole_weights(updates.model):
            validation = held_out_loss(job.system, loader, job.accelerator)
            metrics = validation_metrics(job)
        job.reporter.report_validation(progress, validation, str(job.data.held_out_split), metrics)
        if (
            retrieved := retrieved_documents(job.system, loader)
        ) and job.accelerator.is_main_process:
            job.reporter.write(
                RETRIEVED_EVENT, progress, texts=retrieved, recall=index_recall(job.system)
            )
        if job.data.has_validation:
            updates.schedule.record_validation(validation.loss)
            if progress.record_validation(validation.loss, selection_score(metrics)):
                save_weights(job)
            if job.config.average and job.accelerator.is_main_process:
                save_averaging_weights(job.run, job.system, progress.step, keep=job.config.average)
        return validation.loss


def validation_metrics(job: FitJob) -> dict[str, float]:
    """The validation metric by name, where weights are selected by one; from the main process."""
    if job.metric is None or not job.data.has_validation:
        return {}
    training = job.system.training
    value = job.metric(job.system) if job.accelerator.is_main_process else 0.0
    job.system.train(training)
    [shared] = all_reduce_sum(torch.tensor([value], dtype=torch.float64), job.accelerator)
    return {job.metric.name: shared}


def selection_score(metrics: dict[str, float]) -> float | None:
    """Selection score of weights, lower is better; None where it is the loss."""
    return -next(iter(metrics.values())) if metrics else None


def finish_fit(
    job: FitJob, progress: Progress, updates: Updates, carried_state: State | None
) -> None:
    """End of training: average weights, write the last checkpoint, remove the averaged files.

    This order is safe against kills: before the checkpoint all is redone from the previous one,
    after it `progress.averaged_at_step` says that only files are left to remove.
    """
    if job.config.average:
        select_averaged_weights(job, progress)
    save_fit_checkpoint(job, progress, updates, carried_state)
    _discard_averaging_weights(job, after=0)


def select_averaged_weights(job: FitJob, progress: Progress) -> None:
    """Checkpoint averaging: average the weights of the last validations, and select them if they
    are the best; the system keeps its own weights, so that training can continue."""
    progress.averaged_at_step = progress.step
    if not job.data.has_validation or job.data.held_out is None:
        return
    job.accelerator.wait_for_everyone()  # the main process has written them all
    weights = average_weights(job.run)
    if weights is None:
        return
    current_weights = {name: value.clone() for name, value in job.system.state_dict().items()}
    job.system.load_state_dict(weights)
    with job.system.refreshed():
        validation = held_out_loss(job.system, job.data.held_out, job.accelerator)
        metrics = validation_metrics(job)
        job.reporter.report_validation(progress, validation, "average", metrics)
        if progress.record_best(validation.loss, selection_score(metrics)):
            save_weights(job)
    job.system.load_state_dict(current_weights)


def _discard_averaging_weights(job: FitJob, *, after: int) -> None:
    """Remove weights saved for averaging after a step: already used, or to be written again."""
    if job.accelerator.is_main_process:
        remove_averaging_weights(job.run, after=after)


def save_weights(job: FitJob, *, replace: bool = True) -> None:
    """Save the current weights as the run's; without `replace`, only if it has none."""
    # The main process decides alone: what the others see on disk depends on its timing.
    wanted = job.accelerator.is_main_process and (replace or not job.run.has_weights())
    if wanted or is_sharded(job.system):
        with job.system.refreshed():
            weights = full_tensors(job.system.state_dict())
        if wanted:
            job.run.save_weights(weights)
    job.accelerator.wait_for_everyone()


def save_fit_checkpoint(
    job: FitJob, progress: Progress, updates: Updates, carried_state: State | None
) -> None:
    """Write a checkpoint; the main process writes for all."""
    rows = gather_rows(state_to_tensors(carried_state), job.accelerator)
    whole = job.accelerator.is_main_process or is_sharded(job.system)
    weights = full_tensors(job.optimised.state_dict()) if whole else {}
    moments = full_tensors(optimizer_tensors(updates.optimizer)) if whole else {}
    if job.accelerator.is_main_process:
        job.reporter.flush()  # the metrics up to this step are on disk before the checkpoint
        job.run.save_checkpoint(
            Checkpoint(
                step=progress.step,
                state={
                    "progress": progress.state(),
                    "schedule": updates.schedule.state(),
                    "scaler": updates.scaler.state_dict(),
                },
                model=weights,
                optimizer=moments,
                recurrent_state=rows,
            )
        )
    job.accelerator.wait_for_everyone()


def restore_fit_checkpoint(job: FitJob, updates: Updates) -> tuple[Progress, State | None]:
    """Restore the last checkpoint, if there is one, and drop later metrics."""
    checkpoint = job.run.load_checkpoint(job.reporter.print_message)
    if checkpoint is None:
        _discard_averaging_weights(job, after=0)
        job.reporter.begin(after=0)
        return Progress(), None
    with restoring(job.run.checkpoints_folder):
        load_whole_state(job.optimised, checkpoint.model)
        restore_optimizer(updates.optimizer, checkpoint.optimizer)
        updates.schedule.restore(checkpoint.state["schedule"])
        updates.scaler.load_state_dict(checkpoint.state.get("scaler", {}))
        progress = Progress.restored(checkpoint.state["progress"])
    job.reporter.begin(after=checkpoint.step)
    recurrent_state: dict[str, Tensor] = local_rows(checkpoint.recurrent_state, job.accelerator)
    _discard_averaging_weights(
        job, after=0 if progress.averaged_at_step == progress.step else progress.step
    )
    if job.data.has_validation and not job.run.has_weights():
        # The best weights are lost: the next validated ones become the best.
        progress.best = progress.best_score = math.inf
    return progress, state_from_tensors(recurrent_state)
