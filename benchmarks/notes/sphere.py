"""Why does the sphere help? Runs with and without it, compared (003's question).

    python benchmarks/notes/sphere.py --data DATA --runs RUNS [--out benchmarks/results/sphere.json]

RUNS is the folder with the runs of benchmarks/notes/run.py (and benchmarks/quality.py, for the
LSTM); a pair with a missing run is reported as not run. Measured for each pair:

- the held-out loss by training frequency of the target word;
- the norms of the output vectors by the same frequency bands, and their correlation with log
  frequency (on the sphere, norms have no effect);
- the norms of the token vectors at the start and at the end of training;
- the held-out loss of both at equal training loss: does the sphere learn faster, or better?
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from claims import arguments, norms
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.data.corpus import open_corpus
from lmlab.training.run_folder import TrainedModel, load_run

PAIRS = {
    "lstm": ("lstm.tuned.seed1", "lstm-sphere.tuned.seed1"),
    "gru": ("gru.epochs-20.seed0", "gru.emission-sphere_epochs-20.seed0"),
    "window-remix": ("window-remix.epochs-20.seed0", "window-remix-sphere.epochs-20.seed0"),
}
BANDS = ((1, 9), (10, 99), (100, 999), (1000, 10**9))
"""Lowest and highest count of a word in the training text."""
ROWS = 256
"""Sentences per batch."""


def band_names() -> list[str]:
    """Names of the frequency bands, as in the record."""
    return [f"{low} and more" if high == 10**9 else f"{low} to {high}" for low, high in BANDS]


def counts_of(model: TrainedModel, data: Path) -> Tensor:
    """(V,) count of each token in the training text."""
    counter: Counter[int] = Counter()
    for example in open_corpus(f"multi30k-l20:{data}").splits["train"]:
        counter.update([*model.tokenizer.encode(example.text), model.system.vocabulary.end])
    counts = torch.zeros(model.system.vocabulary.size)
    for token, count in counter.items():
        counts[token] = count
    return counts


@torch.no_grad()
def losses_by_band(model: TrainedModel, data: Path, counts: Tensor) -> dict[str, dict[str, float]]:
    """Nats per token and number of tokens by band, over all of the held-out split."""
    vocabulary, totals, tokens = model.system.vocabulary, torch.zeros(4), torch.zeros(4)
    rows = []
    for example in open_corpus(f"multi30k-l20:{data}").splits["test"]:
        ids = [vocabulary.start, *model.tokenizer.encode(example.text), vocabulary.end]
        rows.append(ids[: model.layout.cut])
    for first in range(0, len(rows), ROWS):
        batch = Batch.collate(rows[first : first + ROWS], pad=vocabulary.pad)
        log_probs, targets = model.system.log_prob(batch).per_token, batch.tokens[:, 1:]
        log_probs = log_probs[:, : targets.shape[1]]
        real = torch.arange(targets.shape[1]) < (batch.lengths - 1)[:, None]
        for band, (low, high) in enumerate(BANDS):
            in_band = real & (counts[targets] >= low) & (counts[targets] <= high)
            totals[band] -= log_probs[in_band].sum()
            tokens[band] += in_band.sum()
    return {
        name: {"nats": float(total / count), "tokens": int(count)}
        for name, total, count in zip(band_names(), totals, tokens, strict=True)
    }


@torch.no_grad()
def norms_by_band(model: TrainedModel, counts: Tensor) -> dict[str, Any] | None:
    """Mean norms of the output vectors by band, and their correlation with log counts.

    None if the emission has no output vector per token (a mixture has one per state).
    """
    weight = getattr(model.system.emission, "weight", None)
    if weight is None:
        return None
    vector_norms = weight.norm(dim=1)
    means = {
        name: float(vector_norms[(counts >= low) & (counts <= high)].mean())
        for name, (low, high) in zip(band_names(), BANDS, strict=True)
    }
    seen = counts > 0
    pair = torch.stack([vector_norms[seen], counts[seen].log()])
    return {"mean length": means, "correlation with log count": float(torch.corrcoef(pair)[0, 1])}


def loss_curve(run: Path) -> list[tuple[float, float]]:
    """Training and held-out loss after each epoch."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    points, last = [], 0.0
    for line in lines:
        if line["event"] == "train":
            last = line["loss"]
        elif line["event"] == "test":
            points.append((last, line["loss"]))
    return points


def at_equal_fit(plain: Path, sphere: Path) -> dict[str, float]:
    """Held-out loss of the sphere at the training loss that the plain model has at its best epoch.

    Best is by held-out loss; the sphere's loss is interpolated between the two nearest epochs.
    """
    fitted, held_out = min(loss_curve(plain), key=lambda point: point[1])
    points = loss_curve(sphere)
    for (high, before), (low, after) in pairwise(points):
        if high >= fitted >= low:
            share = (high - fitted) / max(high - low, 1e-9)
            return {
                "training loss": fitted,
                "plain": held_out,
                "on the sphere": before + share * (after - before),
            }
    return {"training loss": fitted, "plain": held_out}


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    report: dict[str, Any] = {}
    for pair, names in PAIRS.items():
        runs = [options.runs / f"multi30k-l20.{name}" for name in names]
        if not all((run / "model.safetensors").exists() for run in runs):
            print(f"{pair}: not run")
            continue
        report[pair] = {"at equal fit": at_equal_fit(*runs)}
        for side, run in zip(("plain", "on the sphere"), runs, strict=True):
            model = load_run(run)
            counts = counts_of(model, Path(options.data))
            report[pair][side] = {
                "by frequency": losses_by_band(model, Path(options.data), counts),
                "output vectors": norms_by_band(model, counts),
                "lengths over training": norms(run),
            }
        print(pair, json.dumps(report[pair], indent=1), flush=True)
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
