"""Time of the output layer by vocabulary size: softmax against noise-contrastive estimation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax
from lmlab.objectives.sampled_losses import NoiseContrastiveEstimation, NoiseDistribution

SEED = 0
SAMPLES = 25
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
POSITIONS, TIME_WIDTH, SHARED = 128, 64, 256


def time_calls(function: Callable[[], object], rounds: int) -> dict[str, float]:
    """CPU seconds per call (median, lowest, highest), after one warm-up call."""
    function()
    times = []
    for _ in range(rounds):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return {"seconds": statistics.median(times), "lowest": min(times), "highest": max(times)}


def measure_times(size: int, rounds: int) -> dict[str, Any]:
    """Time loss and gradient of the output layer, with random hidden states and targets."""
    vocabulary = Vocabulary(size=size)
    emission = Softmax(TIME_WIDTH, vocabulary)
    generator = torch.Generator().manual_seed(SEED)
    hidden = torch.randn(POSITIONS, TIME_WIDTH, generator=generator).requires_grad_()
    targets = torch.randint(5, size, (POSITIONS, 1), generator=generator)
    noise = NoiseDistribution(vocabulary, power=1.0)
    per_position = NoiseContrastiveEstimation(noise, samples=SAMPLES)
    shared = NoiseContrastiveEstimation(noise, samples=SHARED, shared=True)

    def softmax_step() -> None:
        emission.zero_grad()
        (-emission.log_prob(hidden, targets[:, 0]).mean()).backward()

    def nce_step(objective: NoiseContrastiveEstimation) -> None:
        emission.zero_grad()
        shape = (SHARED,) if objective.shared else (POSITIONS, SAMPLES)
        noise_tokens = noise.sample(shape, generator=generator)
        scored_tokens = targets if objective.shared else torch.cat([targets, noise_tokens], 1)
        scores = emission.scores(hidden, scored_tokens, noise_tokens if objective.shared else None)
        candidates = torch.cat([targets, noise_tokens.expand(POSITIONS, -1)], 1)
        objective.target_losses(scores, noise.log_prob(candidates)).mean().backward()

    optimizer = torch.optim.Adam(emission.parameters())
    record: dict[str, Any] = {"vocabulary": size}
    record["softmax"] = time_calls(softmax_step, 1 if size > 300_000 else rounds)
    record["nce"] = time_calls(lambda: nce_step(per_position), rounds)
    record["nce shared"] = time_calls(lambda: nce_step(shared), rounds)
    record["adam"] = time_calls(lambda: optimizer.step(), rounds)
    print("  ", size, {k: round(v["seconds"], 4) for k, v in record.items() if k != "vocabulary"})
    return record
