"""Is a residual energy better than the language model it stands on? (Deng et al. 2020)

    python benchmarks/residual.py --data DATA --runs RUNS [--seeds 1] [--out FILE.json]

On multi30k-l20 an `lstm` is trained by its recipe for a few epochs, and over it a `residual-ebm`.
Of both the test split is scored, in nats a token: the base's score is exact, the residual's stands
on the upper or on the lower estimate of log Z, whose averages over draws bracket the true one; its
interval goes two standard errors of log Z beyond both.
Runs that were stopped go on; DATA is the folder that holds multi30k/.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finishing import finished

if TYPE_CHECKING:
    from lmlab.core.residual import Partition
    from lmlab.core.score import Score

PROTOCOL = "multi30k-l20"
BASE: dict[str, Any] = {"epochs": 3}
RESIDUAL: dict[str, Any] = {
    "width": 128,
    "layers": 2,
    "heads": 4,
    "length": 24,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "draws": 8192,
    "epochs": 4,
    # At 5e-4 and batches of 1,200, and at this rate in half of these epochs, the contrast was no
    # better than a coin's in first trials: an encoder from nothing may be too little.
    "learning_rate": 1e-4,
    "schedule": "cosine",
    "warmup_steps": 20,
    "tokens_per_batch": 4800,
    "weight_decay": 0.01,
    "clip": 1.0,
}


def run_one(data: str, runs: Path, seed: int) -> dict[str, Any]:
    """Train both, unless they are there, and score the test split by each."""
    import torch

    import lmlab
    from lmlab.core.residual import Residual
    from lmlab.data.corpus import open_corpus

    torch.set_num_threads(1)
    begun, spec = time.perf_counter(), f"{PROTOCOL}:{data}"
    paths = {name: runs / f"{name}-seed{seed}" for name in ("base", "residual")}
    words: dict[str, Any] = {"data": spec, "seed": seed, "resume": True, "quiet": True}
    base = finished(
        lmlab.train("lstm", out=paths["base"], recipe="multi30k", settings=BASE, **words)
    )
    residual = finished(
        lmlab.train(
            "residual-ebm", out=paths["residual"], base=paths["base"], settings=RESIDUAL, **words
        )
    )
    corpus = open_corpus(spec)
    texts = [example.text for example in corpus.splits["test"]]
    models = {name: lmlab.load(path) for name, path in paths.items()}
    scores = {n: m.score(texts, cut=corpus.layout.cut) for n, m in models.items()}
    tokens = sum(score.tokens for score in scores["base"])
    system = models["residual"].model.system
    assert isinstance(system, Residual)
    partition = system.partition()
    gains = [b.total - a.total for a, b in zip(scores["base"], scores["residual"], strict=True)]
    per_token = len(texts) / tokens
    return {
        "seed": seed,
        "base_nats_per_token": -sum(score.total for score in scores["base"]) / tokens,
        "residual_nats_per_token": residual_figures(scores["residual"], partition),
        "gain_nats_per_token": sum(gains) / tokens,
        "gain_standard_error": {
            "of_texts": statistics.stdev(gains) / math.sqrt(len(gains)) * per_token,
            "of_log_z": partition.error * per_token,
        },
        "log_z": asdict(partition),
        "held_out_nce_loss": residual.loss,
        "texts": len(texts),
        "tokens": tokens,
        "seconds": {
            "base": base.seconds,
            "residual": residual.seconds,
            "all": time.perf_counter() - begun,
        },
    }


def residual_figures(scores: Sequence[Score], partition: Partition) -> dict[str, float]:
    """Nats a token by either estimate of log Z, and the ends of the scores' interval."""
    tokens = sum(score.tokens for score in scores)
    by_upper = -sum(score.total for score in scores) / tokens
    between = (partition.high - partition.low) * len(scores) / tokens
    return {
        "by_upper_log_z": by_upper,
        "by_lower_log_z": by_upper - between,
        "interval_best": -sum(score.high or 0.0 for score in scores) / tokens,
        "interval_worst": -sum(score.low or 0.0 for score in scores) / tokens,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="the folder that holds multi30k/")
    parser.add_argument("--runs", type=Path, required=True, help="where trainings are kept")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/residual.json"))
    options = parser.parse_args()
    records = []
    for seed in range(options.seeds):
        records.append(run_one(options.data, options.runs, seed))
        print(json.dumps(records[-1], indent=1), flush=True)
        told = {
            "command": f"python benchmarks/residual.py --data DATA --runs RUNS --seeds {seed + 1}",
            "protocol": PROTOCOL,
            "base": {"system": "lstm", "recipe": "multi30k", **BASE},
            "residual": RESIDUAL,
            "threads": 1,
            "records": records,
        }
        options.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
