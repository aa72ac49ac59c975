"""GloVe training: co-occurrences counted in bounded memory, then least squares by AdaGrad."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.layers.unigram_distribution import UnigramDistribution
from lmlab.models.glove import GloVe
from lmlab.training.cooccurrence import Cooccurrences, PairCounts, WordStream, count_cooccurrences
from lmlab.training.data_loaders import TrainingData
from lmlab.training.fitter_progress import restore_progress, save_progress
from lmlab.training.loop import FitJob, FitResult, save_weights
from lmlab.training.optimizers import LearningRateSchedule
from lmlab.training.progress import Budget, Progress, StopSignals, TrainingClock


class AdaGrad:
    """AdaGrad (Duchi et al. 2011) on the rows of GloVe's parameters that a batch of pairs uses.

        G ← G + g²;   θ ← θ - η g / √G,   g the gradient of J/2 summed over the batch

    G starts at 1, as in the authors' code, so that the first steps are no longer than η g.
    """

    def __init__(self, system: GloVe) -> None:
        self.system = system
        self.sums = {
            name: torch.ones_like(value.detach()) for name, value in system.named_parameters()
        }

    @torch.no_grad()
    def step(self, words: Tensor, contexts: Tensor, counts: Tensor, rate: float) -> float:
        """One step on pairs (N,); returns their J before it."""
        system = self.system
        errors, weights = system.errors(words, contexts, counts), system.weight(counts)
        gradient = weights * errors
        word_gradient = gradient[:, None] * system.contexts[contexts]
        context_gradient = gradient[:, None] * system.words[words]
        self._update("words", words, word_gradient, rate)
        self._update("contexts", contexts, context_gradient, rate)
        self._update("word_bias", words, gradient, rate)
        self._update("context_bias", contexts, gradient, rate)
        return float((gradient * errors).double().sum())

    def _update(self, name: str, ids: Tensor, gradients: Tensor, rate: float) -> None:
        parameter, sums = self.system.get_parameter(name), self.sums[name]
        rows, inverse = ids.unique(return_inverse=True)
        total = gradients.new_zeros(len(rows), *gradients.shape[1:]).index_add_(
            0, inverse, gradients
        )
        sums[rows] += total.square()
        parameter[rows] -= rate * total / sums[rows].sqrt()


def fit_glove(job: FitJob) -> FitResult:
    """GloVe: count co-occurrences, then AdaGrad over all pairs in random order, epoch by epoch.

    A step takes `pairs_per_step` pairs. Training is reproducible and resumable bit-exactly: a
    resumed one counts again. Every process does the same. The last weights are saved.
    """
    system, config, data = job.system, job.config, job.data
    assert isinstance(system, GloVe) and isinstance(data, TrainingData)
    optimizer, schedule = AdaGrad(system), LearningRateSchedule(config)
    progress = restore_progress(job, schedule, optimizer.sums)
    counts = _count(job, system, data)
    budget = Budget(config, counts.batches_per_epoch(system.counting.pairs_per_step))
    if budget.is_over(progress):
        save_weights(job, replace=False)
        return FitResult(progress=progress, reason="nothing")
    clock = TrainingClock(progress.seconds, clock=config.clock)
    saved_at, tokens = progress.seconds, 0
    with job.reporter, StopSignals() as signals:
        for pairs in _batches(counts, system, config.seed, progress):
            rate = schedule.learning_rate_at(progress.step, budget.fraction_spent(progress))
            started = progress.seconds
            loss = optimizer.step(*_tensors(pairs, system), rate)
            progress.seconds, tokens = clock.seconds(), tokens + len(pairs)
            progress.advance(loss, len(pairs), progress.seconds - started, 1, budget.per_epoch)
            over = budget.is_over(progress)
            if not math.isfinite(loss):
                raise _not_finite(progress, config.learning_rate)
            if over or progress.step == 1 or progress.step % config.log_every == 0:
                job.reporter.step(progress, budget, learning_rate=rate, flush=True, tokens=tokens)
                tokens = 0
            if over or signals.stop_requested or budget.checkpoint_due(progress, saved_at):
                job.reporter.flush()
                save_progress(job, progress, schedule, optimizer.sums)
                saved_at = progress.seconds
            if over or signals.stop_requested:
                break
    save_weights(job)
    return FitResult(progress=progress, reason="budget" if over else "interrupted")


def _count(job: FitJob, system: GloVe, data: TrainingData) -> Cooccurrences:
    """The co-occurrences of the training split; a UserError where there are none."""
    words = UnigramDistribution(system.vocabulary, power=1.0, sample=0.0)
    options = system.counting
    counts = count_cooccurrences(
        WordStream(
            tokens=data.flat()[0],
            is_word=words.is_word.numpy(),
            is_boundary=words.is_boundary.numpy(),
        ),
        window=options.window,
        memory_mb=options.memory_mb,
        folder=job.run.path,
        seed=job.config.seed,
    )
    if not counts.pairs:
        raise UserError("no two words occur together in the training text; give longer texts.")
    spilled = "" if counts.runs == 1 else f", merged from {counts.runs:,} runs on disk"
    job.reporter.print_message(f"{counts.pairs:,} pairs of words occur together{spilled}")
    return counts


def _batches(
    counts: Cooccurrences, system: GloVe, seed: int, progress: Progress
) -> Iterator[PairCounts]:
    """Batches of pairs from where the training is, epoch after epoch."""
    size, epoch, start = system.counting.pairs_per_step, progress.epoch, progress.position
    while True:
        yield from counts.batches(size, seed=seed, epoch=epoch, start=start)
        epoch, start = epoch + 1, 0


def _tensors(pairs: PairCounts, system: GloVe) -> tuple[Tensor, Tensor, Tensor]:
    """Words, contexts and counts of pairs, as tensors beside the parameters."""
    keys = torch.from_numpy(pairs["key"].copy())
    counts = torch.from_numpy(pairs["count"].copy()).to(system.words.dtype)
    device, size = system.words.device, system.vocabulary.size
    return (keys // size).to(device), (keys % size).to(device), counts.to(device)


def _not_finite(progress: Progress, rate: float) -> UserError:
    return UserError(
        f"the loss is not finite at step {progress.step}, so training stopped; try another --out "
        f"with --set learning_rate below {rate:g}."
    )
