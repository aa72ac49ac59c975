"""Residual energy-based models against their base language model (Deng et al. 2020).

    python benchmarks/residual.py --data DATA --runs RUNS [--seeds 0 1] [--parts score]

On multi30k an `lstm` is trained by its recipe for a few epochs, and a `roberta` on the same texts.
On the former two `residual-ebm` are trained: one whose encoder is initialised from the latter
(`--encoder`), and one of the same shape from scratch. The test split is scored by all, in nats per
token: the base's score is exact, a residual's uses the upper or the lower estimate of log Z, whose
averages over samples bracket the true one; its interval extends two standard errors of log Z beyond
both.

An independent reference: a logistic regression on n-grams (scikit-learn) classifies captions
against the base's samples, and its log-odds are a residual energy too, with a gain of its own.
Samples of the residual are evaluated by that classifier and by a Kneser-Ney 5-gram (`ngram`),
against the base's samples and real texts.

Settings were selected on the validation split. `lengths` trains briefly with batches of mixed
lengths and with batches of similar lengths, as most systems have them. Each part (score, lengths,
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
# From scratch, in the shape of the one with a pre-trained encoder.
FROM_NOTHING: dict[str, Any] = {
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
JUDGE: dict[str, Any] = {"order": 5}
WRITTEN = 400
"""Samples of a residual to evaluate, each of `candidates` of the base's."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The paths of one seed."""

    data: str
    runs: Path
    seed: int

    @property
    def spec(self) -> str:
        return f"{PROTOCOL}:{self.data}"

    def path(self, name: str) -> Path:
        return self.runs / f"{name}-seed{self.seed}"

    def train(self, name: str) -> float:
        """Training seconds of a run; it is trained if missing."""
        import lmlab

        system, words = self.plan(name)
        common: dict[str, Any] = {"data": self.spec, "seed": self.seed, "quiet": True}
        result = finished(lmlab.train(system, out=self.path(name), resume=True, **common, **words))
        return result.seconds

    def plan(self, name: str) -> tuple[str, dict[str, Any]]:
        """The system of a run, and its training arguments."""
        base, encoder = self.path("base"), self.path("encoder")
        return {
            "base": ("lstm", {"recipe": "multi30k", "settings": BASE}),
            "encoder": ("roberta", {"settings": ENCODER}),
            "begun": ("residual-ebm", {"settings": RESIDUAL, "base": base, "encoder": encoder}),
            "from-nothing": ("residual-ebm", {"settings": FROM_NOTHING, "base": base}),
            "mixed-short": ("residual-ebm", {"settings": SHORT, "base": base, "encoder": encoder}),
            "alike-short": ("residual-ebm", {"settings": SHORT, "base": base, "encoder": encoder}),
            "judge": ("ngram", {"settings": JUDGE}),
        }[name]


RESIDUALS = ("begun", "from-nothing")
PARTS = ("score", "lengths", "yardstick", "writing")


class Measured:
    """The measurements of one seed by part; the runs they need are trained."""

    def __init__(self, setting: Setting) -> None:
        from lmlab.data.corpus import open_corpus

        self.setting = setting
        splits = open_corpus(setting.spec).splits
        self.texts = {part: [each.text for each in split] for part, split in splits.items()}

    def run(self, name: str) -> lmlab.LanguageModel:
        import lmlab

        return lmlab.load(self.setting.path(name))

    def score(self, names: Sequence[str]) -> dict[str, Any]:
        """The test split by the base and by residuals over it."""
        needed = ("base", "encoder", *names)
        seconds = {name: self.setting.train(name) for name in needed}
        plain = self.run("base").score(self.texts["test"])
        tokens = sum(score.tokens for score in plain)
        return {
            "base_nats_per_token": -sum(score.total for score in plain) / tokens,
            "residual": {
                name: compared(plain, self.run(name), self.texts["test"]) for name in names
            },
            "texts": len(plain),
            "tokens": tokens,
            "seconds_of_training": seconds,
        }

    def lengths(self, names: Sequence[str]) -> dict[str, Any]:
        """NCE loss on the validation split with batches of mixed lengths and without."""
        from lmlab.objectives.residual_nce import ResidualNCE

        self.setting.train("mixed-short")
        ResidualNCE.needs_mixed_lengths = False
        try:
            self.setting.train("alike-short")
        finally:
            ResidualNCE.needs_mixed_lengths = True
        kept = {name: self.setting.path(name) for name in ("mixed-short", "alike-short")}
        return {"contrast_by_batches": {name: contrasts(path) for name, path in kept.items()}}

    @cached_property
    def classifier(self) -> NgramClassifier:
        self.setting.train("base")
        return NgramClassifier(self.run("base"), self.texts)

    def yardstick(self, names: Sequence[str]) -> dict[str, Any]:
        """Classification of captions against the base's samples by n-grams, and its gain."""
        return {"yardstick": self.classifier.figures()}

    def writing(self, names: Sequence[str]) -> dict[str, Any]:
        """Evaluation of the samples of the base and the first residual."""
        self.setting.train("judge")
        models = {"judge": self.run("judge"), "residual": self.run(names[0])}
        return {"writing": judged(models, self.classifier, self.texts["test"])}


def compared(
    plain: Sequence[Score], model: lmlab.LanguageModel, texts: list[str]
) -> dict[str, Any]:
    """Gain of a residual over its base on the same texts, with its uncertainty."""
    scores, partition = model.score(texts), residual_of(model).partition()
    tokens = sum(score.tokens for score in plain)
    gains = [b.total - a.total for a, b in zip(plain, scores, strict=True)]
    per_token = len(texts) / tokens
    return {
        "nats_per_token": residual_figures(scores, partition),
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


def residual_figures(scores: Sequence[Score], partition: PartitionEstimate) -> dict[str, float]:
    """Nats per token by both estimates of log Z, and the interval of the scores."""
    tokens = sum(score.tokens for score in scores)
    by_upper = -sum(score.total for score in scores) / tokens
    between = (partition.high - partition.low) * len(scores) / tokens
    return {
        "by_upper_log_z": by_upper,
        "by_lower_log_z": by_upper - between,
        "interval_best": -sum(score.high or 0.0 for score in scores) / tokens,
        "interval_worst": -sum(score.low or 0.0 for score in scores) / tokens,
    }


def contrasts(run: Path) -> dict[str, Any]:
    """Losses of a run: on the validation split by step, and the mean of those in training."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    told = [line for line in lines if line["event"] == "train"]
    texts = sum(line["count"] for line in told)
    return {
        "validation": {x["step"]: x["loss"] for x in lines if x["event"] == "validation"},
        "training": sum(line["loss"] * line["count"] for line in told) / texts,
    }


def judged(
    models: dict[str, lmlab.LanguageModel], yardstick: NgramClassifier, real: list[str]
) -> dict[str, Any]:
    """Samples of base and residual, and real texts: by the 5-gram and the classifier.

    By the classifier the mean log-odds that a text is data, by the 5-gram nats per token. Truncated
    and empty texts are excluded.
    """
    system = residual_of(models["residual"])
    written = {
        "base": yardstick.texts["for test"][: 4 * WRITTEN],
        "residual": system.sample(WRITTEN, max_length=1000, generator=generator(9)),
        "real": [yardstick.ids(text) for text in real],
    }
    found = {}
    for name, texts in written.items():
        whole = [ids for ids in texts if ids[-1] == yardstick.end and len(ids) > 1]
        plain = [yardstick.tokenizer.decode(ids[:-1]) for ids in whole]
        scores = models["judge"].score(plain)
        odds = yardstick.chosen["odds"](whole)
        nats = [-score.total / score.tokens for score in scores]
        root = math.sqrt(len(whole))
        found[name] = {
            "texts": len(whole),
            "tokens_per_text": sum(map(len, whole)) / len(whole),
            "judge_nats_per_token": sum(-s.total for s in scores) / sum(s.tokens for s in scores),
            "judge_nats_per_token_error": statistics.stdev(nats) / root,
            "log_odds_of_data": float(odds.mean()),
            "log_odds_error": float(odds.std()) / root,
            "first_texts": plain[:5],
        }
    return found


def keep(path: Path, seed: int, found: dict[str, Any]) -> None:
    """Add a part to the record of its seed, with its settings."""
    told = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"records": []}
    others = [record for record in told["records"] if record["seed"] != seed]
    mine = [record for record in told["records"] if record["seed"] == seed]
    record = {"seed": seed, **(mine[0] if mine else {}), **found}
    told = {
        "command": "python benchmarks/residual.py --data DATA --runs RUNS",
        "protocol": PROTOCOL,
        "base": {"system": "lstm", "recipe": "multi30k", **BASE},
        "encoder": {"system": "roberta", **ENCODER},
        "begun": RESIDUAL,
        "from_nothing": FROM_NOTHING,
        "threads": 1,
        "records": sorted([*others, record], key=lambda each: each["seed"]),
    }
    path.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="the folder that holds multi30k/")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the training runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--residuals", nargs="+", choices=RESIDUALS, default=RESIDUALS)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/residual.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in options.seeds:
        measured = Measured(Setting(data=options.data, runs=options.runs, seed=seed))
        for part in options.parts:
            found = getattr(measured, part)(options.residuals)
            print(json.dumps(found, indent=1), flush=True)
            keep(options.out, seed, found)


if __name__ == "__main__":
    main()
