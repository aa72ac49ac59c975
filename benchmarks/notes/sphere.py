"""Why does the sphere help? Pairs of runs with and without it, taken apart (003's question).

    python benchmarks/notes/sphere.py --data DATA --runs RUNS [--out benchmarks/results/sphere.json]

RUNS is the folder that benchmarks/notes/run.py (and benchmarks/quality.py, for the LSTM) left its
runs in; a pair of which one is missing is told as not run. Of each pair

- the held-out loss by how often the word to be predicted stands in the training text;
- the lengths of the output vectors by the same bands, and how they go with the words' frequency
  (on the sphere they don't count);
- the lengths of the tokens' vectors at the start and at the end of training;
- the held-out loss of the two when their training loss is the same: is it learnt sooner, or better?
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
"""Times that a word stands in the training text, from and to."""
ROWS = 256


def band_names() -> list[str]:
    return [f"{low} and more" if high == 10**9 else f"{low} to {high}" for low, high in BANDS]


def counts_of(model: TrainedModel, data: Path) -> Tensor:
    """(V,) how often each token stands in the training text."""
    counted: Counter[int] = Counter()
    for example in open_corpus(f"multi30k-l20:{data}").splits["train"]:
        counted.update([*model.tokenizer.encode(example.text), model.system.vocabulary.end])
    counts = torch.zeros(model.system.vocabulary.size)
    for token, count in counted.items():
        counts[token] = count
    return counts


@torch.no_grad()
def losses_by_band(model: TrainedModel, data: Path, counts: Tensor) -> dict[str, dict[str, float]]:
    """Nats a token and number of tokens of each band, over the whole held-out split."""
    vocabulary, totals, seen = model.system.vocabulary, torch.zeros(4), torch.zeros(4)
    rows = []
    for example in open_corpus(f"multi30k-l20:{data}").splits["test"]:
        ids = [vocabulary.start, *model.tokenizer.encode(example.text), vocabulary.end]
        rows.append(ids[: model.layout.cut])
    for first in range(0, len(rows), ROWS):
        batch = Batch.collate(rows[first : first + ROWS], pad=vocabulary.pad)
        scored, targets = model.system.log_prob(batch).per_token, batch.tokens[:, 1:]
        scored = scored[:, : targets.shape[1]]
        real = torch.arange(targets.shape[1]) < (batch.lengths - 1)[:, None]
        for place, (low, high) in enumerate(BANDS):
            here = real & (counts[targets] >= low) & (counts[targets] <= high)
            totals[place] -= scored[here].sum()
            seen[place] += here.sum()
    return {
        name: {"nats": float(total / count), "tokens": int(count)}
        for name, total, count in zip(band_names(), totals, seen, strict=True)
    }


@torch.no_grad()
def lengths_by_band(model: TrainedModel, counts: Tensor) -> dict[str, Any] | None:
    """Mean lengths of the output vectors of each band, and their correlation with log counts.

    None where tokens have no vectors of their own (a mixture's states have them).
    """
    weight = getattr(model.system.emission, "weight", None)
    if weight is None:
        return None
    lengths = weight.norm(dim=1)
    means = {
        name: float(lengths[(counts >= low) & (counts <= high)].mean())
        for name, (low, high) in zip(band_names(), BANDS, strict=True)
    }
    known = counts > 0
    pair = torch.stack([lengths[known], counts[known].log()])
    return {"mean length": means, "correlation with log count": float(torch.corrcoef(pair)[0, 1])}


def course(run: Path) -> list[tuple[float, float]]:
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
    """Where the sphere fits the training text as well as the plain one at its best held-out loss.

    Its held-out loss there, between the two epochs around it.
    """
    fitted, held_out = min(course(plain), key=lambda point: point[1])
    points = course(sphere)
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
                "output vectors": lengths_by_band(model, counts),
                "lengths over training": norms(run),
            }
        print(pair, json.dumps(report[pair], indent=1), flush=True)
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
