"""Noise-contrastive estimation (NCE) and maximum likelihood: gradients, time, normalisers.

    python benchmarks/nce.py [--only time,peaked,training,cosine] [--out FILE.json]
    python benchmarks/nce.py --draw FILE.json --figures docs/images

- training: one small LSTM on WordNet's glosses, with the same initial weights and batches, by
  maximum likelihood, nce (log Z fixed and learned; noise per position and shared), importance
  sampling, sampled softmax, and, as a negative example, maximum likelihood with Z fixed at 1 (loss
  -s(w | h)). Reported: the exact held-out loss, and log Z over held-out contexts (mean and spread)
  during training.
- cosine: gradients of one batch with respect to all weights, at the model trained by nce. NCE's
  with enumerated noise, of normalised and of unnormalised scores, against maximum likelihood's, by
  k; and the variance of NCE's, importance sampling's and sampled softmax's over noise samples.
- peaked: the same estimators in one context where the model gives three rare tokens most of its
  mass.
- time: the output layer alone, loss and gradient, by vocabulary size; and Adam's step over its
  weights, whose time does not depend on the loss, since the gradient of the embedding is dense.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from nce_figures import plot_figures
from nce_times import POSITIONS, SAMPLES, SEED, SHARED, SIZES, TIME_WIDTH, measure_times
from torch import Tensor

from lmlab.core.allocator import retain_freed_memory
from lmlab.core.assembly import Assembly
from lmlab.core.batch import Batch
from lmlab.core.parts import prediction_mask
from lmlab.core.sampled_loss import SampledLossNetwork
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import open_corpus
from lmlab.data.tokenizers import tokenizer_for
from lmlab.emissions.softmax import Softmax
from lmlab.objectives.sampled_losses import (
    ImportanceSampledSoftmax,
    NoiseContrastiveEstimation,
    NoiseDistribution,
    NoiseSampledLoss,
    SampledSoftmax,
    log_normalisers,
)
from lmlab.training.config import TrainingConfig
from lmlab.training.data_loaders import TrainingData, gradient_accumulation_groups, training_data
from lmlab.training.system_building import build_system

STEPS, LEARNING_RATE, WIDTH = 300, 5e-3, 64
MIN_COUNT = 10
HELD_OUT = 8
"""Number of held-out batches."""
OBJECTIVES: dict[str, dict[str, Any]] = {
    "maximum likelihood": {},
    "nce, log Z fixed": {"objective": "nce"},
    "nce, log Z learned": {"objective": "nce", "log_z": "learned"},
    "nce, shared noise": {"objective": "nce", "noise_shared": True, "noise_samples": 500},
    "importance": {"objective": "importance"},
    "sampled softmax": {"objective": "sampled-softmax"},
}
FIXED_Z = "maximum likelihood, Z fixed at 1"
KS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SAMPLED_KS, REPEATS = (4, 16, 64, 256), 24


def make_data() -> tuple[TrainingData, Vocabulary]:
    corpus = open_corpus("wordnet")
    tokenizer = tokenizer_for(corpus, "word", min_count=MIN_COUNT, size=None)
    config = TrainingConfig(tokens_per_batch=700, seed=SEED)
    return training_data(corpus, tokenizer, config, progress=False), tokenizer.vocabulary


def make_system(data: TrainingData, vocabulary: Vocabulary, **settings: Any) -> Assembly:
    merged = {"width": WIDTH, "dropout": 0.0, "noise_samples": SAMPLES, **settings}
    system = build_system("lstm", merged, vocabulary, seed=SEED)
    assert isinstance(system, Assembly)
    # The same output bias for all objectives: unigram log-probabilities.
    unigram = NoiseDistribution(vocabulary, power=1.0)
    unigram.count(data.flat()[0])
    system.setup_data(*data.flat())
    system.initialise_logits(unigram.log_probs())
    return system


def unnormalised_loss(system: Assembly, batch: Batch) -> tuple[Tensor, Tensor]:
    """Summed -s(w | h): the negative log-likelihood under the false assumption that Z = 1."""
    view = system.objective.view(batch)
    hidden, mask = system.hidden(view), prediction_mask(view)
    assert view.targets is not None
    scores = system.scores(hidden, mask, view.targets[mask][:, None])
    return -scores.sum(), torch.tensor(float(len(scores)))


@torch.no_grad()
def normalisers(system: Assembly, batches: list[Batch]) -> Tensor:
    """(N,) log Σ exp s at all held-out positions."""
    views = [system.objective.view(batch) for batch in batches]
    return torch.cat([log_normalisers(system, view).log_probs for view in views])


@torch.no_grad()
def held_out_loss(system: Assembly, batches: list[Batch]) -> float:
    total = sum(float(system.log_prob(batch).totals.sum()) for batch in batches)
    return -total / sum(batch.count for batch in batches)


def train_one(
    name: str, settings: dict[str, Any], data: TrainingData, vocabulary: Vocabulary
) -> tuple[dict[str, Any], Assembly]:
    """Adam with a decaying learning rate; exact losses and log Z during and after training."""
    system = make_system(data, vocabulary, **settings)
    assert data.held_out is not None
    held_out_batches = list(islice(data.held_out.epoch(0), HELD_OUT))
    optimizer = torch.optim.Adam(system.parameters(), lr=LEARNING_RATE)
    generator = torch.Generator().manual_seed(SEED)
    curve, start = [], time.perf_counter()
    for step, (batch,) in enumerate(
        gradient_accumulation_groups(data.train, epoch=0, position=0, size=1)
    ):
        if step % 50 == 0 or step == STEPS:
            system.eval()
            log_z = normalisers(system, held_out_batches)
            curve.append(
                {
                    "step": step,
                    "held_out": held_out_loss(system, held_out_batches),
                    "log_z": float(log_z.mean()),
                    "spread": float(log_z.std()),
                }
            )
            system.train()
        if step == STEPS:
            break
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / STEPS)
        if name == FIXED_Z:
            total, count = unnormalised_loss(system, batch)
        else:
            loss, _ = system.loss(batch, generator=generator)
            total, count = loss.total, loss.count
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
    record: dict[str, Any] = {"name": name, **curve[-1], "course": curve}
    if isinstance(system.sampled_loss, NoiseContrastiveEstimation):
        record["learnt_log_z"] = system.sampled_loss.log_z.item()
    record["seconds"] = time.perf_counter() - start
    return record, system.eval()


def flat_gradient(system: Assembly, loss: Tensor) -> Tensor:
    """Gradient with respect to all weights as one vector, in double precision."""
    gradients = torch.autograd.grad(loss, list(system.parameters()), allow_unused=True)
    weights = list(system.parameters())
    return torch.cat(
        [
            (torch.zeros_like(w) if g is None else g).flatten().double()
            for w, g in zip(weights, gradients, strict=True)
        ]
    )


class EnumeratedNCE:
    """NCE with its noise enumerated: all tokens, weighted by their expected counts."""

    def __init__(self, system: Assembly, batch: Batch, noise: NoiseDistribution) -> None:
        self.system, self.noise = system, noise
        self.view = system.objective.view(batch)
        self.mask = prediction_mask(self.view)
        assert self.view.targets is not None
        self.targets = self.view.targets[self.mask]

    def logits(self) -> Tensor:
        hidden = self.system.hidden(self.view).values[self.mask]
        assert isinstance(self.system.emission, Softmax)
        excluded = torch.tensor(self.system.vocabulary.unpredictable)
        return self.system.emission.logits(hidden).index_fill(1, excluded, -1e9)

    def likelihood_gradient(self) -> Tensor:
        return flat_gradient(self.system, F.cross_entropy(self.logits(), self.targets))

    def nce_gradient(self, samples: int, *, normalised: bool) -> Tensor:
        scores = self.logits()
        scores = F.log_softmax(scores, 1) if normalised else scores
        log_noise = self.noise.log_probs().clamp(min=-1e9)
        log_odds = scores - log_noise - torch.tensor(float(samples)).log()
        target_loss = F.softplus(-log_odds.gather(1, self.targets[:, None])).mean()
        noise_loss = samples * (F.softplus(log_odds) * log_noise.exp()).sum(1).mean()
        return flat_gradient(self.system, target_loss + noise_loss)


def cosine(a: Tensor, b: Tensor) -> float:
    return float(F.cosine_similarity(a, b, dim=0))


def measure_cosines(system: Assembly, batch: Batch, data: TrainingData) -> dict[str, Any]:
    results: dict[str, Any] = {"ks": KS}
    for noise_name, power in (("unigram", 1.0), ("uniform", 0.0)):
        noise = NoiseDistribution(system.vocabulary, power=power)
        noise.count(data.flat()[0])
        enumerated = EnumeratedNCE(system, batch, noise)
        exact = enumerated.likelihood_gradient()
        for score_name, normalised in (("normalised", True), ("plain", False)):
            cosines = [cosine(enumerated.nce_gradient(k, normalised=normalised), exact) for k in KS]
            results[f"{noise_name} noise, {score_name} scores"] = cosines
            values = " ".join(f"{value:.4f}" for value in cosines)
            print(f"  {noise_name:8} {score_name:10}", values, flush=True)
    return results


def measure_variance(system: Assembly, batch: Batch, data: TrainingData) -> list[dict[str, Any]]:
    """Variance of each estimator over noise samples, and the bias of its mean."""
    noise = NoiseDistribution(system.vocabulary, power=1.0)
    noise.count(data.flat()[0])
    exact = EnumeratedNCE(system, batch, noise).likelihood_gradient()
    records = []
    for samples in SAMPLED_KS:
        options: dict[str, Any] = {"samples": samples, "shared": False}
        estimators: dict[str, NoiseSampledLoss] = {
            "nce": NoiseContrastiveEstimation(noise, **options),
            "importance": ImportanceSampledSoftmax(noise, **options),
            "sampled softmax": SampledSoftmax(noise, **options),
        }
        for name, sampled_loss in estimators.items():
            gradients = sampled_gradients(system, sampled_loss, batch)
            mean = gradients.mean(0)
            variance = float((gradients - mean).square().sum(1).sum() / (REPEATS - 1))
            record = {
                "estimator": name,
                "k": samples,
                "variance": variance / float(exact.square().sum()),
                "own_variance": variance / float(mean.square().sum()),
                "cosine_of_a_draw": statistics.mean(cosine(g, exact) for g in gradients),
                "cosine_of_the_mean": cosine(mean, exact),
            }
            records.append(record)
            print("  ", json.dumps(record), flush=True)
    return records


def sampled_gradients(system: Assembly, sampled_loss: NoiseSampledLoss, batch: Batch) -> Tensor:
    """(repeats, weights) gradients of the mean loss, each with fresh noise samples."""
    gradients = []
    for seed in range(REPEATS):
        network = SampledLossNetwork(system, sampled_loss, torch.Generator().manual_seed(seed))
        loss, _ = system.objective.loss(network, batch)
        gradients.append(flat_gradient(system, loss.mean))
    return torch.stack(gradients)


def measure_peaked(mass: float) -> list[dict[str, Any]]:
    """One context, free scores of 10,000 tokens: the model gives three rare ones `mass` of its
    probability, the data has one of them and one other, the noise is Zipfian."""
    size, likely, real = 10_000, [3000, 5000, 7000], [3000, 9000]
    noise = NoiseDistribution(Vocabulary(size=size), power=1.0)
    ranks = torch.arange(1, size + 1)
    noise.count(torch.arange(size).repeat_interleave((size / ranks).long().clamp(min=1)).numpy())
    p = (1 - mass) * noise.log_probs().exp()
    p[likely] += mass / len(likely)
    data = torch.zeros(size)
    data[real] = 1 / len(real)
    exact, q = (p - data).double(), noise.log_probs().exp().double()
    # Closed form for importance sampling with known Z: (1/k) Σ_j p(w_j) / q(w_j) at w_j.
    known_z_variance = float(
        (p.double().square() / q.clamp(min=1e-300)).sum() - p.double().square().sum()
    )
    records: list[dict[str, Any]] = []
    for samples in (16, 64, 256, 1024):
        records.append(
            {
                "mass": mass,
                "estimator": "importance, Z known",
                "k": samples,
                "own_variance": known_z_variance / samples / float(exact.square().sum()),
            }
        )
        options: dict[str, Any] = {"samples": samples, "shared": False}
        for name, sampled_loss in {
            "nce": NoiseContrastiveEstimation(noise, **options),
            "importance": ImportanceSampledSoftmax(noise, **options),
            "sampled softmax": SampledSoftmax(noise, **options),
        }.items():
            gradients = score_gradients(sampled_loss, p.log(), real)
            mean = gradients.mean(0)
            record = {
                "mass": mass,
                "estimator": name,
                "k": samples,
                "own_variance": float(
                    (gradients - mean).square().sum(1).mean() / mean.square().sum()
                ),
                "cosine_of_a_draw": statistics.mean(cosine(g, exact) for g in gradients),
                "cosine_of_the_mean": cosine(mean, exact),
            }
            records.append(record)
            print("  ", json.dumps(record), flush=True)
    return records


def score_gradients(sampled_loss: NoiseSampledLoss, log_probs: Tensor, real: list[int]) -> Tensor:
    """(repeats, V) d loss / d scores, averaged over the real tokens, with fresh noise each."""
    rows, generator = 100, torch.Generator().manual_seed(SEED)
    targets = torch.tensor(real).repeat(rows)[:, None]
    noise = sampled_loss.noise.sample((len(targets), sampled_loss.samples), generator=generator)
    tokens = torch.cat([targets, noise], 1)
    scores = log_probs[tokens].requires_grad_()
    sampled_loss.target_losses(scores, sampled_loss.noise.log_prob(tokens)).sum().backward()
    assert scores.grad is not None
    gradients = torch.zeros(len(targets), len(log_probs), dtype=torch.double)
    gradients.scatter_add_(1, tokens, scores.grad.double())
    return gradients.view(rows, len(real), -1).mean(1)


def measure(parts: list[str], rounds: int) -> dict[str, Any]:
    report: dict[str, Any] = {
        "seed": SEED,
        "threads": torch.get_num_threads(),
        "corpus": f"wordnet, words seen {MIN_COUNT} times or more",
        "lstm": {
            "width": WIDTH,
            "steps": STEPS,
            "learning_rate": LEARNING_RATE,
            "noise_samples": SAMPLES,
        },
    }
    start = time.perf_counter()
    if "time" in parts:
        print("output layer, seconds")
        report["time"] = {
            "places": POSITIONS,
            "width": TIME_WIDTH,
            "noise_samples": SAMPLES,
            "shared_samples": SHARED,
            "records": [measure_times(size, rounds) for size in SIZES],
        }
    if "peaked" in parts:
        report["peaked"] = [row for mass in (0.5, 0.99) for row in measure_peaked(mass)]
    if {"training", "cosine"} & set(parts):
        data, vocabulary = make_data()
        report["vocabulary"] = vocabulary.size
        nce_only = {"nce, log Z fixed": OBJECTIVES["nce, log Z fixed"]}
        objectives = {**OBJECTIVES, FIXED_Z: {}} if "training" in parts else nce_only
        records, nce_system = [], None
        for name, settings in objectives.items():
            record, system = train_one(name, settings, data, vocabulary)
            nce_system = copy.deepcopy(system) if name == "nce, log Z fixed" else nce_system
            records.append(record)
            without_curve = {key: value for key, value in record.items() if key != "course"}
            print(json.dumps(without_curve), flush=True)
        report["training"] = records
    if "cosine" in parts:
        assert nce_system is not None
        batch = next(iter(data.train.epoch(1)))
        report["batch_tokens"] = batch.count
        report["cosine"] = measure_cosines(nce_system, batch, data)
        report["variance"] = measure_variance(nce_system, batch, data)
    report["seconds"] = {",".join(parts): time.perf_counter() - start}
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default="time,peaked,training,cosine", help="parts to measure, comma-separated"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path, help="plot this record instead of measuring")
    parser.add_argument("--figures", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    if options.draw:
        return plot_figures(json.loads(options.draw.read_text("utf-8")), options.figures)
    torch.set_num_threads(options.threads)
    retain_freed_memory()
    report = measure(options.only.split(","), options.rounds)
    report["command"] = (
        f"python benchmarks/nce.py --only {options.only} --rounds {options.rounds} "
        f"--threads {options.threads}"
    )
    if options.out:
        earlier = json.loads(options.out.read_text("utf-8")) if options.out.exists() else {}
        seconds = earlier.get("seconds", {}) | report["seconds"]
        report = {**earlier, **report, "seconds": seconds}  # keep the parts not measured now
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
