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


def seconds(function: Callable[[], object], rounds: int) -> dict[str, float]:
    """CPU time of one thread, which other load changes little."""
    function()
    times = []
    for _ in range(rounds):
        began = time.process_time()
        function()
        times.append(time.process_time() - began)
    return {"seconds": statistics.median(times), "lowest": min(times), "highest": max(times)}


def measure_times(size: int, rounds: int) -> dict[str, Any]:
    """Loss and gradient of the output layer alone, with random hidden states and targets."""
    vocabulary = Vocabulary(size=size)
    emission = Softmax(TIME_WIDTH, vocabulary)
    generator = torch.Generator().manual_seed(SEED)
    hidden = torch.randn(POSITIONS, TIME_WIDTH, generator=generator).requires_grad_()
    targets = torch.randint(5, size, (POSITIONS, 1), generator=generator)
    noise = NoiseDistribution(vocabulary, power=1.0)
    alone = NoiseContrastiveEstimation(noise, samples=SAMPLES)
    common = NoiseContrastiveEstimation(noise, samples=SHARED, shared=True)

    def full() -> None:
        emission.zero_grad()
        (-emission.log_prob(hidden, targets[:, 0]).mean()).backward()

    def contrast(objective: NoiseContrastiveEstimation) -> None:
        emission.zero_grad()
        shape = (SHARED,) if objective.shared else (POSITIONS, SAMPLES)
        noise_tokens = noise.sample(shape, generator=generator)
        scored = targets if objective.shared else torch.cat([targets, noise_tokens], 1)
        scores = emission.scores(hidden, scored, noise_tokens if objective.shared else None)
        chosen = torch.cat([targets, noise_tokens.expand(POSITIONS, -1)], 1)
        objective.target_losses(scores, noise.log_prob(chosen)).mean().backward()

    optimizer = torch.optim.Adam(emission.parameters())
    record: dict[str, Any] = {"vocabulary": size}
    record["softmax"] = seconds(full, 1 if size > 300_000 else rounds)
    record["nce"] = seconds(lambda: contrast(alone), rounds)
    record["nce shared"] = seconds(lambda: contrast(common), rounds)
    record["adam"] = seconds(lambda: optimizer.step(), rounds)
    print("  ", size, {k: round(v["seconds"], 4) for k, v in record.items() if k != "vocabulary"})
    return record
