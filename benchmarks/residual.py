"""Residual energy-based models against their base language model (Deng et al. 2020).

    python benchmarks/residual.py --data DATA --runs RUNS [--seeds 0 1] [--parts score]

On multi30k an `lstm` is trained by its recipe for a few epochs, and a `roberta` on the same texts.
With the `lstm` as base two `residual-ebm` are trained: one whose encoder is initialised from the
`roberta` (`--encoder`), and one of the same shape from scratch. All score the test split, in nats
per token: the base's score is exact; a residual model's uses the upper or the lower estimate of
log Z, whose expectations bracket the true one; its interval extends two standard errors of log Z
beyond both.

As an independent reference (`yardstick`) a logistic regression on n-grams (scikit-learn) classifies
captions against the base's samples; its negative log-odds are a residual energy too, and its gain
is reported. Samples of the residual model, samples of the base and real texts are evaluated by that
classifier and by a Kneser-Ney 5-gram (`ngram`).

Settings were selected on the validation split. `lengths` trains briefly with batches of mixed
lengths and with batches of similar lengths, the default of most systems. Each part (score, lengths,
…) adds its results to --out (benchmarks/results/residual.json). Interrupted runs resume; DATA is
the folder that contains multi30k/.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finishing import finished
from ngram_classifier import NgramClassifier, generator

if TYPE_CHECKING:
    import lmlab
    from lmlab.core.score import Score
    from lmlab.models.residual_energy import PartitionEstimate, ResidualEnergyModel

PROTOCOL = "multi30k"
SHAPE: dict[str, Any] = {"width": 128, "layers": 2, "heads": 4, "length": 48}
BASE: dict[str, Any] = {"epochs": 5}
ENCODER: dict[str, Any] = {
    **SHAPE,
    "epochs": 10,
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "warmup_steps": 200,
    "tokens_per_batch": 2400,
    "weight_decay": 0.01,
}
RESIDUAL: dict[str, Any] = {
    "partition_samples": 8192,
    "epochs": 2,
    "learning_rate": 3e-4,
    "schedule": "cosine",
    "warmup_steps": 50,
    "tokens_per_batch": 1600,
    "weight_decay": 0.01,
    "evaluate_every": 100,
}
# From scratch, with the shape of the pre-trained encoder.
FROM_SCRATCH: dict[str, Any] = {
    **RESIDUAL,
    **SHAPE,
    "pre_norm": False,
    "embedding_norm": True,
    "segments": 1,
}
# Short training with batches of mixed lengths and of similar lengths, equally many texts.
SHORT: dict[str, Any] = {
    **RESIDUAL,
    "steps": 100,
    "epochs": None,
    "schedule": "constant",
    "evaluate_every": 50,
}
NGRAM: dict[str, Any] = {"order": 5}
SAMPLES = 400
"""Samples of the residual model to evaluate."""


@dataclass(frozen=True, kw_only=True)
class SeedRuns:
    """The training runs of one seed."""

    data: str
    runs: Path
    seed: int

    @property
    def spec(self) -> str:
        return f"{PROTOCOL}:{self.data}"

    def path(self, name: str) -> Path:
        return self.runs / f"{name}-seed{self.seed}"

    def train(self, name: str) -> float:
        """Train a run, if missing; its training time in seconds."""
        import lmlab

        system, arguments = self.plan(name)
        common: dict[str, Any] = {"data": self.spec, "seed": self.seed, "quiet": True}
        result = finished(
            lmlab.train(system, out=self.path(name), resume=True, **common, **arguments)
        )
        return result.seconds

    def plan(self, name: str) -> tuple[str, dict[str, Any]]:
        """The system of a run, and its training arguments."""
        base, encoder = self.path("base"), self.path("encoder")
        return {
            "base": ("lstm", {"recipe": "multi30k", "settings": BASE}),
            "encoder": ("roberta", {"settings": ENCODER}),
            "begun": ("residual-ebm", {"settings": RESIDUAL, "base": base, "encoder": encoder}),
            "from-nothing": ("residual-ebm", {"settings": FROM_SCRATCH, "base": base}),
            "mixed-short": ("residual-ebm", {"settings": SHORT, "base": base, "encoder": encoder}),
            "alike-short": ("residual-ebm", {"settings": SHORT, "base": base, "encoder": encoder}),
            "judge": ("ngram", {"settings": NGRAM}),
        }[name]


RESIDUALS = ("begun", "from-nothing")
PARTS = ("score", "lengths", "yardstick", "writing")


class SeedMeasurements:
    """The measurements of one seed, one method per part; trains the runs they need."""

    def __init__(self, runs: SeedRuns) -> None:
        from lmlab.data.corpus import open_corpus

        self.runs = runs
        splits = open_corpus(runs.spec).splits
        self.texts = {part: [example.text for example in split] for part, split in splits.items()}

    def run(self, name: str) -> lmlab.LanguageModel:
        import lmlab

        return lmlab.load(self.runs.path(name))

    def score(self, names: Sequence[str]) -> dict[str, Any]:
        """Scores of the test split by the base and by residual models."""
        needed = ("base", "encoder", *names)
        seconds = {name: self.runs.train(name) for name in needed}
        base_scores = self.run("base").score(self.texts["test"])
        tokens = sum(score.tokens for score in base_scores)
        return {
            "base_nats_per_token": -sum(score.total for score in base_scores) / tokens,
            "residual": {
                name: gain_over_base(base_scores, self.run(name), self.texts["test"])
                for name in names
            },
            "texts": len(base_scores),
            "tokens": tokens,
            "seconds_of_training": seconds,
        }

    def lengths(self, names: Sequence[str]) -> dict[str, Any]:
        """NCE loss on the validation split, with batches of mixed and of similar lengths."""
        from lmlab.objectives.residual_nce import ResidualNCE

        self.runs.train("mixed-short")
        ResidualNCE.needs_mixed_lengths = False
        try:
            self.runs.train("alike-short")
        finally:
            ResidualNCE.needs_mixed_lengths = True
        paths = {name: self.runs.path(name) for name in ("mixed-short", "alike-short")}
        return {"contrast_by_batches": {name: nce_losses(path) for name, path in paths.items()}}

    @cached_property
    def classifier(self) -> NgramClassifier:
        self.runs.train("base")
        return NgramClassifier(self.run("base"), self.texts)

    def yardstick(self, names: Sequence[str]) -> dict[str, Any]:
        """N-gram classifier of captions against the base's samples, and its gain."""
        return {"yardstick": self.classifier.figures()}

    def writing(self, names: Sequence[str]) -> dict[str, Any]:
        """Evaluation of samples of the base and of the first residual model."""
        self.runs.train("judge")
        models = {"judge": self.run("judge"), "residual": self.run(names[0])}
        return {"writing": evaluate_samples(models, self.classifier, self.texts["test"])}


def gain_over_base(
    base_scores: Sequence[Score], model: lmlab.LanguageModel, texts: list[str]
) -> dict[str, Any]:
    """Gain of a residual model over its base on the same texts, with standard errors."""
    scores, partition = model.score(texts), residual_of(model).partition()
    tokens = sum(score.tokens for score in base_scores)
    gains = [b.total - a.total for a, b in zip(base_scores, scores, strict=True)]
    per_token = len(texts) / tokens
    return {
        "nats_per_token": residual_nats(scores, partition),
        "gain_nats_per_token": sum(gains) / tokens,
        "gain_standard_error": {
            "of_texts": statistics.stdev(gains) / math.sqrt(len(gains)) * per_token,
            "of_log_z": partition.error * per_token,
        },
        "log_z": asdict(partition),
    }


def residual_of(model: lmlab.LanguageModel) -> ResidualEnergyModel:
    from lmlab.models.residual_energy import ResidualEnergyModel

    system = model.model.system
    assert isinstance(system, ResidualEnergyModel)
    return system


def residual_nats(scores: Sequence[Score], partition: PartitionEstimate) -> dict[str, float]:
    """Nats per token by both estimates of log Z, and the bounds of the scores."""
    tokens = sum(score.tokens for score in scores)
    by_upper = -sum(score.total for score in scores) / tokens
    difference = (partition.high - partition.low) * len(scores) / tokens
    return {
        "by_upper_log_z": by_upper,
        "by_lower_log_z": by_upper - difference,
        "interval_best": -sum(score.high or 0.0 for score in scores) / tokens,
        "interval_worst": -sum(score.low or 0.0 for score in scores) / tokens,
    }


def nce_losses(run: Path) -> dict[str, Any]:
    """NCE losses of a run: validation loss by step, and mean training loss."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    training = [line for line in lines if line["event"] == "train"]
    texts = sum(line["count"] for line in training)
    return {
        "validation": {x["step"]: x["loss"] for x in lines if x["event"] == "validation"},
        "training": sum(line["loss"] * line["count"] for line in training) / texts,
    }


def evaluate_samples(
    models: dict[str, lmlab.LanguageModel], classifier: NgramClassifier, real: list[str]
) -> dict[str, Any]:
    """Evaluate samples of base and residual model, and real texts.

    Reports the classifier's mean log-odds of being data, and the 5-gram's nats per token. Truncated
    and empty texts are excluded.
    """
    system = residual_of(models["residual"])
    samples = {
        "base": classifier.texts["for test"][: 4 * SAMPLES],
        "residual": system.sample(SAMPLES, max_length=1000, generator=generator(9)),
        "real": [classifier.ids(text) for text in real],
    }
    results = {}
    for name, texts in samples.items():
        complete = [ids for ids in texts if ids[-1] == classifier.end and len(ids) > 1]
        decoded = [classifier.tokenizer.decode(ids[:-1]) for ids in complete]
        scores = models["judge"].score(decoded)
        log_odds = classifier.selected["odds"](complete)
        nats = [-score.total / score.tokens for score in scores]
        root = math.sqrt(len(complete))
        results[name] = {
            "texts": len(complete),
            "tokens_per_text": sum(map(len, complete)) / len(complete),
            "judge_nats_per_token": sum(-s.total for s in scores) / sum(s.tokens for s in scores),
            "judge_nats_per_token_error": statistics.stdev(nats) / root,
            "log_odds_of_data": float(log_odds.mean()),
            "log_odds_error": float(log_odds.std()) / root,
            "first_texts": decoded[:5],
        }
    return results


def add_to_record(path: Path, seed: int, results: dict[str, Any]) -> None:
    """Add the results of a part to the record of its seed, and write the settings."""
    report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"records": []}
    others = [record for record in report["records"] if record["seed"] != seed]
    earlier = [record for record in report["records"] if record["seed"] == seed]
    record = {"seed": seed, **(earlier[0] if earlier else {}), **results}
    report = {
        "command": "python benchmarks/residual.py --data DATA --runs RUNS",
        "protocol": PROTOCOL,
        "base": {"system": "lstm", "recipe": "multi30k", **BASE},
        "encoder": {"system": "roberta", **ENCODER},
        "begun": RESIDUAL,
        "from_nothing": FROM_SCRATCH,
        "threads": 1,
        "records": sorted([*others, record], key=lambda entry: entry["seed"]),
    }
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="folder that contains multi30k/")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the training runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--residuals", nargs="+", choices=RESIDUALS, default=RESIDUALS)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/residual.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in options.seeds:
        measurements = SeedMeasurements(SeedRuns(data=options.data, runs=options.runs, seed=seed))
        for part in options.parts:
            results = getattr(measurements, part)(options.residuals)
            print(json.dumps(results, indent=1), flush=True)
            add_to_record(options.out, seed, results)


if __name__ == "__main__":
    main()
