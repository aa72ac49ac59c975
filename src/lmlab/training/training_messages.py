"""What a training prints before and after: origins, cost, warnings about the data, the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelerate import Accelerator

from lmlab.core.system import System
from lmlab.training.cost_estimate import estimate_cost
from lmlab.training.data_loaders import TrainingData
from lmlab.training.loop import FitResult
from lmlab.training.run_folder import RunFolder
from lmlab.training.training_logs import Reporter, format_exact_duration
from lmlab.training.training_origins import TrainingOrigins
from lmlab.training.training_plan import TrainingPlan

if TYPE_CHECKING:
    from lmlab.training.train import TrainingResult


def announce_origins(reporter: Reporter, origins: TrainingOrigins, data: TrainingData) -> None:
    for sentence in origins.sentences():
        reporter.print_message(sentence)
    continued = origins.continued
    if continued is not None and (warning := continued.unknown_warning(data.flat()[0])):
        reporter.print_message(warning)


def announce(
    reporter: Reporter,
    system: System,
    data: TrainingData,
    plan: TrainingPlan,
    accelerator: Accelerator,
    *,
    resumed: bool,
) -> None:
    title = f"{plan.card.name} ({plan.size})" + (", resumed" if resumed else "")
    if system.fitting == "gradient":
        expected = estimate_cost(
            system,
            data.train,
            plan.training,
            tokens=data.dataset.total_tokens,
            processes=accelerator.num_processes,
        )
        reporter.print_message(f"{title}: {expected.sentence()}")
    else:
        methods = {"counting": "by counting", "em": "by EM", "words": "word by word"}
        methods["cooccurrence"] = "to co-occurrence counts"
        by = methods[system.fitting]
        reporter.print_message(f"{title}: fitted {by} on {data.dataset.total_tokens:,} tokens")
    if losses := data.dataset.report.losses():
        reporter.print_message(f"while reading the training split: {losses}")
    if dropped := data.dataset.report.uneven_pairs:
        reporter.print_message(
            f"{dropped:,} training pairs exceed the maximum length ratio and are dropped"
        )
    if data.held_out_split == "test":
        reporter.print_message(
            "this corpus has no validation split: the test loss is reported but selects "
            "nothing, and the last weights are kept"
        )


def final_message(outcome: FitResult, run: RunFolder, result: TrainingResult, unit: str) -> str:
    """The final message, with the held-out loss of the run's weights."""
    loss = result.loss if result.best is None else result.best
    loss_text = "" if loss is None else f", {loss:.4f} {unit}"
    progress = outcome.progress
    when = f"at step {progress.step} after {format_exact_duration(progress.seconds)}"
    if outcome.reason == "interrupted":
        return (
            f"stopped {when}; a checkpoint is in {run.checkpoints_folder}, continue with --resume"
        )
    if outcome.reason == "nothing":
        return f"{run.path} is already trained; give a larger budget to continue"
    early = ", as the loss stopped decreasing" if outcome.reason == "early" else ""
    early = ", pruned by its validation losses" if outcome.reason == "pruned" else early
    return f"finished {when}{early}{loss_text}: {run.path}"
