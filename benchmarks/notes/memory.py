"""Memory span and gradient decay of recurrent cells (002's claims).

    python benchmarks/notes/memory.py [--out benchmarks/results/notes-memory.json]

- recall: a key with one of eight values, a gap of dots, the key again. Measures the probability of
  the value by the number of tokens in between; chance is 1/8. 002 says that an RNN remembers about
  7 steps and an LSTM about 100.
- gradient: the factor by which one more step back multiplies the gradient of an untrained linear
  recurrence, by its spectral radius. 002 says that the factor equals the radius.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path

import numpy as np
import torch

import lmlab
from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.languages.recall import RecallTruth
from lmlab.inspection.gradient_flow import measure_gradient_by_distance

SYSTEMS = ("rnn", "lstm", "gru")
GAPS = (1, 3, 5, 8, 12, 20, 40, 80, 120)
RADII = (0.7, 0.9, 1.0, 1.1, 1.3)
STEPS = 1500
SETTINGS = {
    "width": "64",
    "dropout": "0",
    "learning_rate": "0.003",
    "grad_clip": "1",
    "tokens_per_batch": "2048",
}


def write_corpus(folder: Path, gap: int) -> Path:
    """Recall of one pair over a gap of dots; 4,000 training texts and 200 test texts."""
    truth = RecallTruth(
        keys=2, values=8, min_pairs=1, max_pairs=1, min_distance=0, max_distance=None, gap=gap
    )
    generator = np.random.default_rng(gap)
    for split, count in (("train", 4000), ("valid", 200), ("test", 200)):
        lines = [truth.sample(generator) for _ in range(count)]
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def recall(system: str, gap: int, folder: Path, steps: int) -> dict[str, float]:
    """Train on one gap; mean probability of the queried value, and share of texts above 0.5."""
    corpus = folder / "corpus"
    corpus.mkdir()
    run = folder / "run"
    lmlab.train(
        system,
        data=str(write_corpus(corpus, gap)),
        out=run,
        settings=SETTINGS,
        steps=steps,
        quiet=True,
    )
    texts = (corpus / "test.txt").read_text(encoding="utf-8").splitlines()
    model = lmlab.load(run)
    # The last word is the value; the end token comes after it.
    probabilities = [math.exp(score.per_token[-2].log_prob) for score in model.score(texts)]
    return {
        "probability": float(np.mean(probabilities)),
        "right": float(np.mean(np.array(probabilities) > 0.5)),
    }


def recall_table(steps: int) -> list[dict[str, object]]:
    """Recall of every system at every gap, one training run each."""
    rows: list[dict[str, object]] = []
    for system in SYSTEMS:
        for gap in GAPS:
            with tempfile.TemporaryDirectory() as folder:
                result = recall(system, gap, Path(folder), steps)
            # Steps from the value to the position that predicts it: the dots, "?" and the key.
            rows.append({"system": system, "steps back": gap + 2, **result})
            print(f"{system:6} {gap + 2:4} steps: p = {result['probability']:.3f}", flush=True)
    return rows


def gradient_table() -> list[dict[str, object]]:
    """Gradient factor of an untrained linear recurrence of 64 units over 40 random tokens."""
    module, rows = system_module("rnn"), []
    vocabulary = Vocabulary(size=50)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(5, 50, (32, 42), generator=generator)
    tokens[:, 0] = 2
    batch = Batch.collate(tokens.tolist(), pad=vocabulary.pad)
    for radius in RADII:
        torch.manual_seed(0)
        config = module.Config(width=64, dropout=0.0, activation="linear", radius=radius)
        flow = measure_gradient_by_distance(module.build(config, vocabulary), [batch])
        rows.append({"radius": radius, "factor": flow.factor})
        print(f"radius {radius}: a step back multiplies the gradient by {flow.factor:.3f}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS, help="steps per training run")
    parser.add_argument("--out", type=Path, help="JSON record to write")
    options = parser.parse_args()
    report = {"steps": options.steps, "settings": SETTINGS, "gradient": gradient_table()}
    report["recall"] = recall_table(options.steps)
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
