"""word2vec training by SGD: the text streamed in chunks through compiled (numba) kernels."""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmlab.core.errors import UserError
from lmlab.emissions.word2vec_emission import PooledContext
from lmlab.models.word2vec import Word2Vec
from lmlab.objectives.negative_sampling import NegativeSampling
from lmlab.training.data_loaders import TrainingData
from lmlab.training.fitter_progress import restore_progress, save_progress
from lmlab.training.loop import FitJob, FitResult, fit_by_gradient, save_weights
from lmlab.training.optimizers import LearningRateSchedule
from lmlab.training.progress import Budget, Progress, StopSignals, TrainingClock
from lmlab.training.validation import held_out_loss

STEPS_AHEAD = 2
"""Steps queued per thread, so that no thread waits."""


@dataclass(frozen=True, kw_only=True)
class ChunkResult:
    """Result of one step."""

    learning_rate: float
    loss_total: float
    """Loss of the sampled pairs …"""
    loss_count: int
    """… and their number."""
    tokens: int


class TextChunks:
    """A training split in chunks of `size` tokens, and the training step on one of them.

    The ids stay where they are, possibly on disk; a chunk is loaded when needed, and the order of
    the chunks of an epoch depends on the seed and its number. Windows end at the ends of a chunk
    and at the special tokens that start or end a sentence. Sampling depends on the seed and the
    number of the step alone.
    """

    def __init__(self, system: Word2Vec, tokens: NDArray[np.generic], *, size: int, seed: int):
        from lmlab.training import word2vec_kernels

        self.tokens = tokens
        self.size = size
        self.seed = seed
        objective, unigram = system.objective, system.objective.unigram
        assert isinstance(objective, NegativeSampling), "the full softmax has no compiled code"
        keep_probabilities = unigram.keep_probabilities().numpy().copy()
        keep_probabilities[unigram.is_boundary.numpy()] = word2vec_kernels.SENTENCE_BREAK
        stay, alias = word2vec_kernels.alias_table(unigram.noise().numpy())
        self._sample_pairs: Callable[[NDArray[np.int32], int], Any] = lambda ids, seed: (
            word2vec_kernels.sample_training_pairs(
                ids,
                keep_probabilities,
                stay,
                alias,
                objective.window,
                objective.random_contexts,
                objective.negatives,
                seed,
            )
        )
        self._train_step = _compiled_step(system)
        self._order: tuple[int, NDArray[np.int64]] | None = None

    def per_epoch(self) -> int:
        """Chunks of the whole text."""
        return max(1, -(-len(self.tokens) // self.size))

    def chunk_index(self, epoch: int, position: int) -> int:
        """The chunk at a position of an epoch."""
        if self._order is None or self._order[0] != epoch:
            generator = np.random.default_rng([self.seed, epoch])
            self._order = (epoch, generator.permutation(self.per_epoch()))
        return int(self._order[1][position])

    def step(self, number: int, chunk: int, rate: float) -> ChunkResult:
        """Train on the chunk number `chunk`; `number` is the step's, from 0."""
        low = chunk * self.size
        ids = np.asarray(self.tokens[low : low + self.size]).astype(np.int32)
        step_seed = np.random.SeedSequence([self.seed, number]).generate_state(1, np.uint64)[0]
        loss, count = self._train_step(*self._sample_pairs(ids, step_seed), np.float32(rate))
        return ChunkResult(learning_rate=rate, loss_total=loss, loss_count=count, tokens=len(ids))


def _compiled_step(system: Word2Vec) -> Callable[..., tuple[float, int]]:
    """The compiled step of a system, in place on its parameters."""
    from lmlab.training import word2vec_kernels as kernels

    inputs = system.emission.inputs.detach().numpy()
    outputs = system.emission.outputs.detach().numpy()
    combination, limit = system.emission.combination, np.float32(system.emission.max_norm)
    if isinstance(combination, PooledContext):
        return lambda *samples: kernels.cbow_step(
            *samples[:4], inputs, outputs, samples[4], limit, combination.mean, combination.whole
        )
    kernel = {"each": kernels.skipgram_step, "product": kernels.product_cbow_step}[combination.code]
    return lambda *samples: kernel(*samples[:4], inputs, outputs, samples[4], limit)


def fit_word2vec(job: FitJob) -> FitResult:
    """word2vec by SGD, pair by pair, in compiled code (Mikolov et al. 2013).

    A step takes `tokens_per_batch` tokens of the training split; `threads` of the system run in
    parallel, and with a single one training is reproducible and resumable bit-exactly. The
    optimiser is always plain SGD at the learning rate of the schedule. The last weights are saved:
    word vectors are not selected by validation loss. Without numba, with several processes or on
    another device the ordinary training loop is used.
    """
    reason = _unsupported_reason(job)
    if reason:
        job.reporter.print_message(f"{reason}, so the slower PyTorch loop is used")
        return fit_by_gradient(job)
    system, config, data = job.system, job.config, job.data
    assert isinstance(system, Word2Vec) and isinstance(data, TrainingData)
    schedule = LearningRateSchedule(config)
    progress = restore_progress(job, schedule)
    tokens, _ = data.flat()
    chunks = TextChunks(system, tokens, size=config.tokens_per_batch, seed=config.seed)
    budget = Budget(config, chunks.per_epoch())
    if budget.is_over(progress):
        save_weights(job, replace=False)
        return FitResult(progress=progress, reason="nothing")
    return _Word2VecTraining(job, chunks, budget, schedule, progress, system.threads).run()


class _Word2VecTraining:
    """A training in progress: steps queued, running and done."""

    def __init__(
        self,
        job: FitJob,
        chunks: TextChunks,
        budget: Budget,
        schedule: LearningRateSchedule,
        progress: Progress,
        threads: int,
    ) -> None:
        self.job = job
        self.chunks = chunks
        self.budget = budget
        self.schedule = schedule
        self.progress = progress
        self.threads = threads
        self.clock = TrainingClock(progress.seconds, clock=job.config.clock)
        self.pending: deque[Future[ChunkResult]] = deque()
        self.held_out_loss: float | None = None
        self.tokens = 0
        """Tokens since the last training line of the metrics."""

    def run(self) -> FitResult:
        """Train; running steps complete before weights are evaluated or saved."""
        progress, budget, saved_at = self.progress, self.budget, self.progress.seconds
        planned, draining, saving = replace(progress), False, False
        with self.job.reporter, StopSignals() as signals, ThreadPoolExecutor(self.threads) as pool:
            while self.pending or not (budget.is_over(progress) or signals.stop_requested):
                # Keep the threads busy until something is due.
                while len(self.pending) < STEPS_AHEAD * self.threads and not draining:
                    self.pending.append(self._submit_step(pool, planned))
                    draining = self._pause_due(planned)
                self._record_step(self.pending.popleft().result())

                saving = saving or budget.checkpoint_due(progress, saved_at)
                draining = draining or saving or signals.stop_requested or budget.is_over(progress)
                if self.pending:
                    continue
                # All threads idle: validate, and save a checkpoint.
                if self._evaluation_due(progress):
                    self._validate()
                progress.seconds = self.clock.seconds()  # validation is not training time
                if saving:
                    self._save()
                    saved_at = progress.seconds
                planned, draining, saving = replace(progress), False, False
            self._save()
        save_weights(self.job)
        reason = "budget" if budget.is_over(progress) else "interrupted"
        reason = "early" if budget.early_stopping_due(progress) else reason
        return FitResult(progress=progress, reason=reason, loss=self.held_out_loss)

    def _submit_step(self, pool: ThreadPoolExecutor, planned: Progress) -> Future[ChunkResult]:
        """Submit the next step, and count it as planned."""
        planned.seconds = self.clock.seconds()
        rate = self.schedule.learning_rate_at(planned.step, self.budget.fraction_spent(planned))
        chunk = self.chunks.chunk_index(planned.epoch, planned.position)
        future = pool.submit(self.chunks.step, planned.step, chunk, rate)
        planned.advance(0.0, 0.0, 0.0, 1, self.budget.per_epoch)
        return future

    def _evaluation_due(self, progress: Progress) -> bool:
        return self.budget.evaluation_due(progress) or self.budget.fraction_spent(progress) >= 1

    def _pause_due(self, planned: Progress) -> bool:
        """Whether something is due after the steps planned so far."""
        every = self.job.config.checkpoint_steps
        return self._evaluation_due(planned) or (every > 0 and planned.step % every == 0)

    def _record_step(self, result: ChunkResult) -> None:
        """Count a step, and log every so often."""
        progress = self.progress
        previous_seconds, progress.seconds = progress.seconds, self.clock.seconds()
        progress.advance(
            result.loss_total,
            result.loss_count,
            progress.seconds - previous_seconds,
            1,
            self.budget.per_epoch,
        )
        self.tokens += result.tokens
        log_due = progress.step % self.job.config.log_every == 0 or progress.step == 1
        if log_due or self._evaluation_due(progress):
            self._log(result.learning_rate)

    def _log(self, learning_rate: float) -> None:
        progress = self.progress
        loss = progress.window_total / max(progress.window_count, 1)
        if not np.isfinite(loss):
            raise UserError(
                f"the loss is not finite at step {progress.step}, so training stopped; try another "
                f"--out with --set learning_rate below {self.job.config.learning_rate:g}."
            )
        self.job.reporter.step(
            progress, self.budget, learning_rate=learning_rate, flush=True, tokens=self.tokens
        )
        self.tokens = 0

    def _validate(self) -> None:
        job, loader = self.job, self.job.data.held_out
        if loader is None:
            return
        validation = held_out_loss(job.system, loader, job.accelerator)
        job.reporter.report_validation(self.progress, validation, str(job.data.held_out_split))
        self.held_out_loss = validation.loss
        if job.data.has_validation:
            self.schedule.record_validation(validation.loss)
            self.progress.record_validation(validation.loss)

    def _save(self) -> None:
        self.job.reporter.flush()
        save_progress(self.job, self.progress, self.schedule)


def _unsupported_reason(job: FitJob) -> str | None:
    """Why the compiled code can't be used, as the beginning of a sentence."""
    if not isinstance(job.system.objective, NegativeSampling):
        return "the full softmax has no compiled code"
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed (pip install 'lmlab[words]')"
    if job.accelerator.num_processes > 1:
        return "compiled code supports a single process"
    if job.accelerator.device.type != "cpu":
        return f"compiled code runs on the CPU, and the device is {job.accelerator.device.type}"
    return None
