"""What the notes claim of the insides of their models (003), measured on the runs of the tables.

    python benchmarks/notes/claims.py --data DATA --runs RUNS [--out benchmarks/results/claims.json]

RUNS is the folder that benchmarks/notes/run.py left its runs in; a claim whose run is not there is
told as not run. Everything is measured on the first 500 test sentences of the run's own corpus.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.data.corpus import open_corpus
from lmlab.training.run_folder import TrainedModel, load_run

RECORDS = Path(__file__).parents[1] / "results" / "notes"
SENTENCES = 500
NOISES = (0.0, 0.1, 0.2, 0.5, 1.0)

Measured = dict[str, Any]


def test_batch(model: TrainedModel, data: Path) -> Batch:
    """The first sentences of the test split, cut as the protocol cuts them."""
    corpus, vocabulary = open_corpus(f"multi30k-l20:{data}"), model.system.vocabulary
    rows = []
    for example in corpus.splits["test"]:
        ids = [vocabulary.start, *model.tokenizer.encode(example.text), vocabulary.end]
        rows.append(ids[: model.layout.cut])
        if len(rows) == SENTENCES:
            break
    return Batch.collate(rows, pad=vocabulary.pad)


def mean_over_targets(values: Tensor, batch: Batch) -> float:
    """The mean of (B, T) values over the places at which a token is predicted."""
    real = torch.arange(values.shape[1])[None] < (batch.lengths[:, None] - 1)
    return float(values[real].mean())


def parents(model: TrainedModel, batch: Batch) -> Measured:
    """Where the prior and the posterior over parents stand: the start symbol or the last word."""
    captures = model.system.capture_internals(batch)
    found: Measured = {}
    for name in ("parent prior", "posterior"):
        table = captures[name].values
        table = table[None] if table.ndim == 2 else table
        places = range(5, min(table.shape[1:]))
        found[name] = {
            "on the start symbol": float(table[:, list(places), 0].sum(0).mean() / len(table)),
            "on the last word": float(
                torch.stack([table[:, i, i] for i in places]).sum(1).mean() / len(table)
            ),
        }
    return found


def slots(model: TrainedModel, batch: Batch) -> Measured:
    """For each slot how many places back its prior looks most, and how sure it is."""
    prior = model.system.capture_internals(batch)["slot prior"].values
    place = prior.shape[1] - 1
    best = prior[:, place].max(-1)
    return {
        "places back": [place - int(source) + 1 for source in best.indices],
        "weight": [round(float(weight), 3) for weight in best.values],
    }


def rotation(model: TrainedModel, batch: Batch) -> Measured:
    share = model.system.capture_internals(batch)["share of the rotation"].values
    return {"share of the rotation": mean_over_targets(share, batch)}


def looseness(model: TrainedModel, batch: Batch) -> Measured:
    gap = model.system.capture_internals(batch)["looseness"].values
    return {"nats a token between bound and exact": mean_over_targets(gap, batch)}


def collapse(model: TrainedModel, batch: Batch) -> Measured:
    """How much the posterior tells: KL by unit of the latent vector."""
    captures = model.system.capture_internals(batch)
    by_unit = captures["divergence"].values
    return {
        "KL a sentence": float(by_unit.sum()),
        "units above 0.01 nats": int((by_unit > 0.01).sum()),
        "units": by_unit.numel(),
        "root mean square of the means": float(
            captures["latent means"].values.square().mean().sqrt()
        ),
    }


@torch.no_grad()
def noise(model: TrainedModel, batch: Batch) -> Measured:
    """Reconstruction in nats a token when the latent vector is disturbed by noise."""
    found: Measured = {}
    for size in NOISES:
        generator = torch.Generator().manual_seed(0)
        scored = model.system.reconstruct(batch, latent_noise=size, generator=generator)
        found[str(size)] = -float(scored.totals.sum()) / float((batch.lengths - 1).sum())
    return {"nats a token by noise": found}


CLAIMS: tuple[tuple[str, Callable[[TrainedModel, Batch], Measured]], ...] = (
    ("parent-prior", parents),
    ("remix-aligned", parents),
    ("slots", slots),
    ("remix-rotated", rotation),
    ("product-bound", looseness),
    ("gru-vae", collapse),
    ("linear-autoencoder", noise),
    ("gru-autoencoder", noise),
    ("mlp-autoencoder", noise),
    ("rnn-autoencoder", noise),
)


def norms(run: Path) -> Measured | None:
    """Lengths of the tokens' vectors at the start and at the end of a training."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    told = [line["vector_norms"] for line in lines if line.get("vector_norms")]
    return {"first": told[0], "last": told[-1]} if told else None


def arguments(description: str) -> argparse.Namespace:
    """Where the corpora and the runs are, and where the record goes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, default=os.environ.get("LMLAB_DATA"))
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    report: Measured = {}
    for system, measure in CLAIMS:
        for run in sorted(options.runs.glob(f"multi30k-l20.{system}.*")):
            if not (RECORDS / f"{run.name}.json").exists():
                continue  # not trained to its end
            model = load_run(run)
            report[run.name] = measure(model, test_batch(model, Path(options.data)))
            print(run.name, json.dumps(report[run.name]), flush=True)
        if not any(name.startswith(f"multi30k-l20.{system}.") for name in report):
            print(f"{system}: not run")
    for run in sorted(options.runs.glob("multi30k-l20.*")):
        if (run / "metrics.jsonl").exists() and (lengths := norms(run)) is not None:
            report[f"vector norms of {run.name}"] = lengths
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
