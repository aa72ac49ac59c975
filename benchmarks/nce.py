"""Noise-contrastive estimation beside maximum likelihood: gradients, time, normalisers (002).

    python benchmarks/nce.py [--only time,peaked,training,cosine] [--out FILE.json]
    python benchmarks/nce.py --draw FILE.json --figures docs/images

- training: one small LSTM on WordNet's glosses, the same first weights and batches, by maximum
  likelihood, nce (log Z fixed and learned; noise for each place and shared), importance sampling,
  sampled softmax, and as 002 warns not to, maximum likelihood with Z fixed at 1 (loss -s(w | h)).
  Told: the exact held-out loss, and log Z over held-out contexts (mean and spread) on the way.
- cosine: gradients of one batch with respect to all weights, at the model trained by nce. NCE's
  with its noise enumerated, of normalised and of plain scores, against maximum likelihood's, by k;
  and the variance of NCE's, importance sampling's and sampled softmax's over draws of the noise.
- peaked: the same estimators in one context where the model gives three rare tokens most of its
  mass, as 002 pictures a model with some ability.
- time: the output layer alone, loss and gradient, by the size of the vocabulary; and Adam's step
  over its weights, which is the same for all, since the gradient of a table is as large as it.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from torch import Tensor

from lmlab.core.allocator import retain_freed_memory
from lmlab.core.batch import Batch
from lmlab.core.parts import prediction_mask
from lmlab.core.sampled_loss import SampledLossNetwork
from lmlab.core.system import Assembly
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
from lmlab.plotting.figure import add_legend, as_svg, canvas, line_style, set_plain_log_scale
from lmlab.training.config import TrainingConfig
from lmlab.training.data_loaders import TrainingData, gradient_accumulation_groups, training_data
from lmlab.training.run_folder import build_system

SEED = 0
STEPS, RATE, WIDTH = 300, 5e-3, 64
MIN_COUNT = 10
HELD_OUT = 8
"""Batches of held-out glosses."""
SAMPLES = 25
WAYS: dict[str, dict[str, Any]] = {
    "maximum likelihood": {},
    "nce, log Z fixed": {"objective": "nce"},
    "nce, log Z learned": {"objective": "nce", "log_z": "learned"},
    "nce, shared noise": {"objective": "nce", "noise_shared": True, "noise_samples": 500},
    "importance": {"objective": "importance"},
    "sampled softmax": {"objective": "sampled-softmax"},
}
FIXED = "maximum likelihood, Z fixed at 1"
KS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
DRAWN_KS, DRAWS = (4, 16, 64, 256), 24
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
PLACES, TIME_WIDTH, SHARED = 128, 64, 256


def make_data() -> tuple[TrainingData, Vocabulary]:
    corpus = open_corpus("wordnet")
    tokenizer = tokenizer_for(corpus, "word", min_count=MIN_COUNT, size=None)
    config = TrainingConfig(tokens_per_batch=700, seed=SEED)
    return training_data(corpus, tokenizer, config, progress=False), tokenizer.vocabulary


def make_system(data: TrainingData, vocabulary: Vocabulary, **settings: Any) -> Assembly:
    words = {"width": WIDTH, "dropout": 0.0, "noise_samples": SAMPLES, **settings}
    system = build_system("lstm", words, vocabulary, seed=SEED)
    assert isinstance(system, Assembly)
    # Met by all, so that their biases start alike.
    law = NoiseDistribution(vocabulary, power=1.0)
    law.count(data.flat()[0])
    system.setup_data(*data.flat())
    system.initialise_logits(law.log_probs())
    return system


def scores_as_loss(system: Assembly, batch: Batch) -> tuple[Tensor, Tensor]:
    """-s(w | h) summed: the log-likelihood, if its normaliser were one whatever the scores."""
    view = system.objective.view(batch)
    hidden, places = system.hidden(view), prediction_mask(view)
    assert view.targets is not None
    scores = system.scores(hidden, places, view.targets[places][:, None])
    return -scores.sum(), torch.tensor(float(len(scores)))


@torch.no_grad()
def normalisers(system: Assembly, batches: list[Batch]) -> Tensor:
    """(N,) log Σ exp s at all held-out places."""
    views = [system.objective.view(batch) for batch in batches]
    return torch.cat([log_normalisers(system, view).log_probs for view in views])


@torch.no_grad()
def held_out_loss(system: Assembly, batches: list[Batch]) -> float:
    total = sum(float(system.log_prob(batch).totals.sum()) for batch in batches)
    return -total / sum(batch.count for batch in batches)


def train_one(
    name: str, settings: dict[str, Any], data: TrainingData, vocabulary: Vocabulary
) -> tuple[dict[str, Any], Assembly]:
    """Adam with a falling rate; exact losses and log Z on the way and at the end."""
    system = make_system(data, vocabulary, **settings)
    assert data.held_out is not None
    watched = list(islice(data.held_out.epoch(0), HELD_OUT))
    optimizer = torch.optim.Adam(system.parameters(), lr=RATE)
    generator = torch.Generator().manual_seed(SEED)
    course, began = [], time.perf_counter()
    for step, (batch,) in enumerate(
        gradient_accumulation_groups(data.train, epoch=0, position=0, size=1)
    ):
        if step % 50 == 0 or step == STEPS:
            system.eval()
            spread = normalisers(system, watched)
            course.append(
                {
                    "step": step,
                    "held_out": held_out_loss(system, watched),
                    "log_z": float(spread.mean()),
                    "spread": float(spread.std()),
                }
            )
            system.train()
        if step == STEPS:
            break
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / STEPS)
        if name == FIXED:
            total, count = scores_as_loss(system, batch)
        else:
            loss, _ = system.loss(batch, generator=generator)
            total, count = loss.total, loss.count
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
    record: dict[str, Any] = {"name": name, **course[-1], "course": course}
    if isinstance(system.sampled_loss, NoiseContrastiveEstimation):
        record["learnt_log_z"] = system.sampled_loss.log_z.item()
    record["seconds"] = time.perf_counter() - began
    return record, system.eval()


def flat_gradient(system: Assembly, loss: Tensor) -> Tensor:
    """The gradient of all weights in one vector, in double so that lengths are exact."""
    found = torch.autograd.grad(loss, list(system.parameters()), allow_unused=True)
    weights = list(system.parameters())
    return torch.cat(
        [
            (torch.zeros_like(w) if g is None else g).flatten().double()
            for w, g in zip(weights, found, strict=True)
        ]
    )


class Enumerated:
    """NCE with all tokens as noise, each as often as it is expected: 002's L* without a draw."""

    def __init__(self, system: Assembly, batch: Batch, noise: NoiseDistribution) -> None:
        self.system, self.noise = system, noise
        self.view = system.objective.view(batch)
        self.places = prediction_mask(self.view)
        assert self.view.targets is not None
        self.targets = self.view.targets[self.places]

    def logits(self) -> Tensor:
        hidden = self.system.hidden(self.view).values[self.places]
        assert isinstance(self.system.emission, Softmax)
        never = torch.tensor(self.system.vocabulary.unpredictable)
        return self.system.emission.logits(hidden).index_fill(1, never, -1e9)

    def likelihood(self) -> Tensor:
        return flat_gradient(self.system, F.cross_entropy(self.logits(), self.targets))

    def contrast(self, samples: int, *, normalised: bool) -> Tensor:
        scores = self.logits()
        scores = F.log_softmax(scores, 1) if normalised else scores
        log_noise = self.noise.log_probs().clamp(min=-1e9)
        odds = scores - log_noise - torch.tensor(float(samples)).log()
        of_target = F.softplus(-odds.gather(1, self.targets[:, None])).mean()
        of_noise = samples * (F.softplus(odds) * log_noise.exp()).sum(1).mean()
        return flat_gradient(self.system, of_target + of_noise)


def cosine(a: Tensor, b: Tensor) -> float:
    return float(F.cosine_similarity(a, b, dim=0))


def measure_cosines(system: Assembly, batch: Batch, data: TrainingData) -> dict[str, Any]:
    found: dict[str, Any] = {"ks": KS}
    for law, power in (("unigram", 1.0), ("uniform", 0.0)):
        noise = NoiseDistribution(system.vocabulary, power=power)
        noise.count(data.flat()[0])
        asked = Enumerated(system, batch, noise)
        exact = asked.likelihood()
        for word, normalised in (("normalised", True), ("plain", False)):
            each = [cosine(asked.contrast(k, normalised=normalised), exact) for k in KS]
            found[f"{law} noise, {word} scores"] = each
            print(f"  {law:8} {word:10}", " ".join(f"{value:.4f}" for value in each), flush=True)
    return found


def measure_variance(system: Assembly, batch: Batch, data: TrainingData) -> list[dict[str, Any]]:
    """Of each estimator over draws of its noise, and how far its mean is from the truth."""
    noise = NoiseDistribution(system.vocabulary, power=1.0)
    noise.count(data.flat()[0])
    exact = Enumerated(system, batch, noise).likelihood()
    records = []
    for samples in DRAWN_KS:
        words: dict[str, Any] = {"samples": samples, "shared": False}
        estimators: dict[str, NoiseSampledLoss] = {
            "nce": NoiseContrastiveEstimation(noise, **words),
            "importance": ImportanceSampledSoftmax(noise, **words),
            "sampled softmax": SampledSoftmax(noise, **words),
        }
        for name, contrast in estimators.items():
            drawn = draws_of(system, contrast, batch)
            mean = drawn.mean(0)
            spread = float((drawn - mean).square().sum(1).sum() / (DRAWS - 1))
            record = {
                "estimator": name,
                "k": samples,
                "variance": spread / float(exact.square().sum()),
                "own_variance": spread / float(mean.square().sum()),
                "cosine_of_a_draw": statistics.mean(cosine(one, exact) for one in drawn),
                "cosine_of_the_mean": cosine(mean, exact),
            }
            records.append(record)
            print("  ", json.dumps(record), flush=True)
    return records


def draws_of(system: Assembly, contrast: NoiseSampledLoss, batch: Batch) -> Tensor:
    """(draws, weights) gradients of the mean loss, each with its own noise."""
    found = []
    for seed in range(DRAWS):
        network = SampledLossNetwork(system, contrast, torch.Generator().manual_seed(seed))
        loss, _ = system.objective.loss(network, batch)
        found.append(flat_gradient(system, loss.mean))
    return torch.stack(found)


def measure_peaked(mass: float) -> list[dict[str, Any]]:
    """One context, free scores of 10,000 tokens: the model gives three rare ones `mass` of its
    probability, the data has one of them and one other, noise follows Zipf's law."""
    size, likely, real = 10_000, [3000, 5000, 7000], [3000, 9000]
    noise = NoiseDistribution(Vocabulary(size=size), power=1.0)
    ranks = torch.arange(1, size + 1)
    noise.count(torch.arange(size).repeat_interleave((size / ranks).long().clamp(min=1)).numpy())
    p = (1 - mass) * noise.log_probs().exp()
    p[likely] += mass / len(likely)
    data = torch.zeros(size)
    data[real] = 1 / len(real)
    exact, q = (p - data).double(), noise.log_probs().exp().double()
    # Of (1/k) Σ_j p(w_j) / q(w_j) at w_j, the estimate that needs p normalised: by arithmetic.
    known = float((p.double().square() / q.clamp(min=1e-300)).sum() - p.double().square().sum())
    records: list[dict[str, Any]] = []
    for samples in (16, 64, 256, 1024):
        records.append(
            {
                "mass": mass,
                "estimator": "importance, Z known",
                "k": samples,
                "own_variance": known / samples / float(exact.square().sum()),
            }
        )
        words: dict[str, Any] = {"samples": samples, "shared": False}
        for name, contrast in {
            "nce": NoiseContrastiveEstimation(noise, **words),
            "importance": ImportanceSampledSoftmax(noise, **words),
            "sampled softmax": SampledSoftmax(noise, **words),
        }.items():
            drawn = score_gradients(contrast, p.log(), real)
            mean = drawn.mean(0)
            record = {
                "mass": mass,
                "estimator": name,
                "k": samples,
                "own_variance": float((drawn - mean).square().sum(1).mean() / mean.square().sum()),
                "cosine_of_a_draw": statistics.mean(cosine(one, exact) for one in drawn),
                "cosine_of_the_mean": cosine(mean, exact),
            }
            records.append(record)
            print("  ", json.dumps(record), flush=True)
    return records


def score_gradients(contrast: NoiseSampledLoss, log_probs: Tensor, real: list[int]) -> Tensor:
    """(draws, V) d loss / d scores, each for all real tokens as targets with noise of their own."""
    rows, generator = 100, torch.Generator().manual_seed(SEED)
    targets = torch.tensor(real).repeat(rows)[:, None]
    noise = contrast.noise.sample((len(targets), contrast.samples), generator=generator)
    tokens = torch.cat([targets, noise], 1)
    scores = log_probs[tokens].requires_grad_()
    contrast.target_losses(scores, contrast.noise.log_prob(tokens)).sum().backward()
    assert scores.grad is not None
    found = torch.zeros(len(targets), len(log_probs), dtype=torch.double)
    found.scatter_add_(1, tokens, scores.grad.double())
    return found.view(rows, len(real), -1).mean(1)


def seconds(function: Callable[[], object], rounds: int) -> dict[str, float]:
    """Of one thread's own work, which others on the machine change little."""
    function()
    each = []
    for _ in range(rounds):
        began = time.process_time()
        function()
        each.append(time.process_time() - began)
    return {"seconds": statistics.median(each), "lowest": min(each), "highest": max(each)}


def measure_times(size: int, rounds: int) -> dict[str, Any]:
    """Loss and gradient of the output layer alone, hidden states and targets drawn at random."""
    vocabulary = Vocabulary(size=size)
    emission = Softmax(TIME_WIDTH, vocabulary)
    generator = torch.Generator().manual_seed(SEED)
    hidden = torch.randn(PLACES, TIME_WIDTH, generator=generator).requires_grad_()
    targets = torch.randint(5, size, (PLACES, 1), generator=generator)
    noise = NoiseDistribution(vocabulary, power=1.0)
    alone = NoiseContrastiveEstimation(noise, samples=SAMPLES)
    common = NoiseContrastiveEstimation(noise, samples=SHARED, shared=True)

    def full() -> None:
        emission.zero_grad()
        (-emission.log_prob(hidden, targets[:, 0]).mean()).backward()

    def contrast(objective: NoiseContrastiveEstimation) -> None:
        emission.zero_grad()
        shape = (SHARED,) if objective.shared else (PLACES, SAMPLES)
        drawn = noise.sample(shape, generator=generator)
        own = targets if objective.shared else torch.cat([targets, drawn], 1)
        scores = emission.scores(hidden, own, drawn if objective.shared else None)
        chosen = torch.cat([targets, drawn.expand(PLACES, -1)], 1)
        objective.target_losses(scores, noise.log_prob(chosen)).mean().backward()

    optimizer = torch.optim.Adam(emission.parameters())
    record: dict[str, Any] = {"vocabulary": size}
    record["softmax"] = seconds(full, 1 if size > 300_000 else rounds)
    record["nce"] = seconds(lambda: contrast(alone), rounds)
    record["nce shared"] = seconds(lambda: contrast(common), rounds)
    record["adam"] = seconds(lambda: optimizer.step(), rounds)
    print("  ", size, {k: round(v["seconds"], 4) for k, v in record.items() if k != "vocabulary"})
    return record


def measure(wanted: list[str], rounds: int) -> dict[str, Any]:
    report: dict[str, Any] = {
        "seed": SEED,
        "threads": torch.get_num_threads(),
        "corpus": f"wordnet, words seen {MIN_COUNT} times or more",
        "lstm": {"width": WIDTH, "steps": STEPS, "learning_rate": RATE, "noise_samples": SAMPLES},
    }
    began = time.perf_counter()
    if "time" in wanted:
        print("output layer, seconds")
        report["time"] = {
            "places": PLACES,
            "width": TIME_WIDTH,
            "noise_samples": SAMPLES,
            "shared_samples": SHARED,
            "records": [measure_times(size, rounds) for size in SIZES],
        }
    if "peaked" in wanted:
        report["peaked"] = [one for mass in (0.5, 0.99) for one in measure_peaked(mass)]
    if {"training", "cosine"} & set(wanted):
        data, vocabulary = make_data()
        report["vocabulary"] = vocabulary.size
        alone = {"nce, log Z fixed": WAYS["nce, log Z fixed"]}
        ways = {**WAYS, FIXED: {}} if "training" in wanted else alone
        records, kept = [], None
        for name, settings in ways.items():
            record, system = train_one(name, settings, data, vocabulary)
            kept = copy.deepcopy(system) if name == "nce, log Z fixed" else kept
            records.append(record)
            shown = {key: value for key, value in record.items() if key != "course"}
            print(json.dumps(shown), flush=True)
        report["training"] = records
    if "cosine" in wanted:
        assert kept is not None
        batch = next(iter(data.train.epoch(1)))
        report["batch_tokens"] = batch.count
        report["cosine"] = measure_cosines(kept, batch, data)
        report["variance"] = measure_variance(kept, batch, data)
    report["seconds"] = {",".join(wanted): time.perf_counter() - began}
    return report


def draw(report: dict[str, Any], folder: Path) -> None:
    """nce-cosine.svg, nce-variance.svg, nce-time.svg and nce-normaliser.svg."""
    pictures = {
        "nce-cosine": draw_cosine,
        "nce-variance": draw_variance,
        "nce-time": draw_time,
        "nce-normaliser": draw_normaliser,
    }
    for name, picture in pictures.items():
        with canvas(name, height=3.2) as figure:
            picture(report, figure)
            (folder / f"{name}.svg").write_text(as_svg(figure), encoding="utf-8")


def decades(axes: Axes, ticks: Sequence[float]) -> None:
    """A logarithmic x axis with plain numbers at some places."""
    axes.set_xscale("log")
    axes.set_xticks(list(ticks), [f"{tick:,g}" if tick < 1e4 else f"{tick:,.0f}" for tick in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())


def draw_cosine(report: dict[str, Any], figure: Figure) -> None:
    axes = figure.subplots()
    for look, name in enumerate(name for name in report["cosine"] if name != "ks"):
        rest = [1 - value for value in report["cosine"][name]]
        axes.plot(report["cosine"]["ks"], rest, label=name, marker=".", **line_style(look))
    decades(axes, (1, 10, 100, 1000))
    axes.set(yscale="log", xlabel="k, tokens of noise for each target")
    axes.set(ylabel="1 - cosine to maximum likelihood's")
    set_plain_log_scale(axes)
    add_legend(axes)


def draw_variance(report: dict[str, Any], figure: Figure) -> None:
    """In the trained model, and in one context of a model that is sure of rare tokens."""
    peaked = [row for row in report["peaked"] if row["mass"] == 0.99]
    both = figure.subplots(1, 2, sharey=True)
    for axes, rows, title in (
        (both[0], report["variance"], "LSTM trained by nce"),
        (both[1], peaked, "sure of three rare tokens"),
    ):
        for look, name in enumerate(
            ("nce", "importance", "sampled softmax", "importance, Z known")
        ):
            chosen = [row for row in rows if row["estimator"] == name]
            if chosen:
                xs, ys = [row["k"] for row in chosen], [row["own_variance"] for row in chosen]
                axes.plot(xs, ys, label=name, marker="o", **line_style(look))
        decades(axes, (10, 100, 1000))
        axes.set(yscale="log", xlabel="k", title=title)
        set_plain_log_scale(axes)
    both[0].set(ylabel="variance / squared length of the mean")
    add_legend(both[1])


def draw_time(report: dict[str, Any], figure: Figure) -> None:
    axes, records = figure.subplots(), report["time"]["records"]
    sizes = [row["vocabulary"] for row in records]
    names = {"softmax": "softmax", "nce": "nce", "nce shared": "nce shared", "adam": "Adam's step"}
    for look, (name, label) in enumerate(names.items()):
        times = [row[name]["seconds"] * 1000 for row in records]
        axes.plot(sizes, times, label=label, marker="o", **line_style(look))
    decades(axes, (10_000, 100_000, 1_000_000))
    axes.set(yscale="log", xlabel="vocabulary", ylabel="milliseconds a step")
    set_plain_log_scale(axes)
    add_legend(axes)


def draw_normaliser(report: dict[str, Any], figure: Figure) -> None:
    axes = figure.subplots()
    for look, record in enumerate(report["training"]):
        steps = [point["step"] for point in record["course"]]
        logs = [point["log_z"] for point in record["course"]]
        axes.plot(steps, logs, label=record["name"], **line_style(look))
    axes.set_yscale("symlog", linthresh=0.5)
    axes.set_yticks([-0.25, 0, 0.25, 0.5, 5, 50], ["-0.25", "0", "0.25", "0.5", "5", "50"])
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="step", ylabel="mean log Z on held-out text", ylim=(-0.3, 80))
    add_legend(axes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="time,peaked,training,cosine")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path, help="a record to draw instead of measuring")
    parser.add_argument("--figures", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    if options.draw:
        return draw(json.loads(options.draw.read_text(encoding="utf-8")), options.figures)
    torch.set_num_threads(options.threads)
    retain_freed_memory()
    report = measure(options.only.split(","), options.rounds)
    report["command"] = (
        f"python benchmarks/nce.py --only {options.only} --rounds {options.rounds} "
        f"--threads {options.threads}"
    )
    if options.out:
        before = json.loads(options.out.read_text("utf-8")) if options.out.exists() else {}
        took = before.get("seconds", {}) | report["seconds"]
        report = {**before, **report, "seconds": took}  # what was not asked for stays
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
