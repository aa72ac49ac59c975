"""The notes' claims about the internals of their models (003), measured on the runs of run.py.

    python benchmarks/notes/claims.py --data DATA --runs RUNS [--out benchmarks/results/claims.json]

RUNS is the folder with the runs of benchmarks/notes/run.py; a claim without a run is reported as
not run. Everything is measured on the first 500 test sentences of the run's own corpus.
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
    """The first sentences of the test split, truncated to the length limit of the protocol."""
    corpus, vocabulary = open_corpus(f"multi30k-l20:{data}"), model.system.vocabulary
    rows = []
    for example in corpus.splits["test"]:
        ids = [vocabulary.start, *model.tokenizer.encode(example.text), vocabulary.end]
        rows.append(ids[: model.layout.cut])
        if len(rows) == SENTENCES:
            break
    return Batch.collate(rows, pad=vocabulary.pad)


def mean_over_targets(values: Tensor, batch: Batch) -> float:
    """The mean of (B, T) values over the positions at which a token is predicted."""
    real = torch.arange(values.shape[1])[None] < (batch.lengths[:, None] - 1)
    return float(values[real].mean())


def parents(model: TrainedModel, batch: Batch) -> Measured:
    """Mass that the prior and posterior over parents put on the start token and the last word."""
    captures = model.system.capture_internals(batch)
    masses: Measured = {}
    for name in ("parent prior", "posterior"):
        table = captures[name].values
        table = table[None] if table.ndim == 2 else table
        positions = range(5, min(table.shape[1:]))
        masses[name] = {
            "on the start symbol": float(table[:, list(positions), 0].sum(0).mean() / len(table)),
            "on the last word": float(
                torch.stack([table[:, i, i] for i in positions]).sum(1).mean() / len(table)
            ),
        }
    return masses


def slots(model: TrainedModel, batch: Batch) -> Measured:
    """Per slot, the distance to the position with the highest prior weight, and that weight."""
    prior = model.system.capture_internals(batch)["slot prior"].values
    position = prior.shape[1] - 1
    best = prior[:, position].max(-1)
    return {
        "places back": [position - int(source) + 1 for source in best.indices],
        "weight": [round(float(weight), 3) for weight in best.values],
    }


def rotation(model: TrainedModel, batch: Batch) -> Measured:
    """Mean probability that a prediction rotates the previous word's vector."""
    share = model.system.capture_internals(batch)["share of the rotation"].values
    return {"share of the rotation": mean_over_targets(share, batch)}


def looseness(model: TrainedModel, batch: Batch) -> Measured:
    """Mean gap between the bound and the exact log-probability."""
    gap = model.system.capture_internals(batch)["looseness"].values
    return {"nats per token between bound and exact": mean_over_targets(gap, batch)}


def collapse(model: TrainedModel, batch: Batch) -> Measured:
    """Posterior collapse: KL to the prior, in total and by unit of the latent vector."""
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
    """Reconstruction loss in nats per token with noise added to the latent vector."""
    losses: Measured = {}
    for noise_scale in NOISES:
        generator = torch.Generator().manual_seed(0)
        scored = model.system.reconstruct(batch, latent_noise=noise_scale, generator=generator)
        losses[str(noise_scale)] = -float(scored.totals.sum()) / float((batch.lengths - 1).sum())
    return {"nats per token by noise": losses}


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
    """Norms of the token vectors at the start and at the end of training."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    logged = [line["vector_norms"] for line in lines if line.get("vector_norms")]
    return {"first": logged[0], "last": logged[-1]} if logged else None


def arguments(description: str) -> argparse.Namespace:
    """Parse the paths of the corpora, the runs and the record."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("LMLAB_DATA"), help="folder of the corpora"
    )
    parser.add_argument("--runs", type=Path, required=True, help="folder of the training runs")
    parser.add_argument("--out", type=Path, help="JSON record to write")
    return parser.parse_args()


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    report: Measured = {}
    for system, measure in CLAIMS:
        for run in sorted(options.runs.glob(f"multi30k-l20.{system}.*")):
            if not (RECORDS / f"{run.name}.json").exists():
                continue  # training is not finished
            model = load_run(run)
            report[run.name] = measure(model, test_batch(model, Path(options.data)))
            print(run.name, json.dumps(report[run.name]), flush=True)
        if not any(name.startswith(f"multi30k-l20.{system}.") for name in report):
            print(f"{system}: not run")
    for run in sorted(options.runs.glob("multi30k-l20.*")):
        if (run / "metrics.jsonl").exists() and (vector_norms := norms(run)) is not None:
            report[f"vector norms of {run.name}"] = vector_norms
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
