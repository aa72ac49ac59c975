"""The Vision Transformer against a linear model on scikit-learn's digits.

    python benchmarks/vit.py [--seeds 5] [--out benchmarks/results/vit.json]

For each seed the images are split again, 1,197 for training, 300 for validation, 300 for test.
`vit` is trained by its recipe `digits`, its best epoch selected on validation; the linear model is
multinomial logistic regression on the pixels, its penalty selected on validation. Metrics: test
accuracy, and the surprisal of the label in nats. The predicted label is the most probable token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from lmlab.core.batch import Batch
from lmlab.data.corpus import Corpus, open_corpus
from lmlab.data.languages.digits import NAMES
from lmlab.training.run_folder import load_run
from lmlab.training.train import train

PENALTIES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Inverse penalties to select from on validation."""


def arrays(corpus: Corpus, split: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(N, 64) pixels from 0 to 1 and (N,) digits."""
    examples = list(corpus.splits[split])
    pixels = [[int(word) for word in str(example.condition).split()] for example in examples]
    return np.array(pixels) / 16, np.array([NAMES.index(example.text) for example in examples])


def evaluate_linear(corpus: Corpus) -> tuple[NDArray[np.bool_], float]:
    """Whether each test image is classified correctly, and the mean nats per label."""
    pixels, labels = arrays(corpus, "train")
    held_out, test = arrays(corpus, "validation"), arrays(corpus, "test")
    fitted = [LogisticRegression(C=c, max_iter=5000).fit(pixels, labels) for c in PENALTIES]
    best = max(fitted, key=lambda model: model.score(*held_out))
    log_probs = best.predict_log_proba(test[0])
    nats = -log_probs[np.arange(len(test[1])), test[1]].mean()
    return best.predict(test[0]) == test[1], float(nats)


@torch.no_grad()
def evaluate_vit(run: Path, corpus: Corpus, split: str) -> tuple[NDArray[np.bool_], float]:
    """The same for a run, from its distribution of the first token."""
    model = load_run(run)
    system, tokenizer = model.system.eval(), model.tokenizer
    examples, vocabulary = list(corpus.splits[split]), model.system.vocabulary
    images = [
        [vocabulary.start, *tokenizer.encode(str(example.condition)), vocabulary.end]
        for example in examples
    ]
    condition = Batch.collate(images, pad=vocabulary.pad)
    labels = torch.tensor([tokenizer.encode(example.text)[0] for example in examples])
    next_word = system.peek(system.start(len(examples), condition=condition))
    correct = (next_word.log_probs.argmax(-1) == labels).numpy()
    return correct, float(-next_word.log_prob(labels).mean())


def compare_models(seed: int, settings: dict[str, str]) -> dict[str, float]:
    """Both models on one split of the images."""
    corpus = open_corpus("digits", seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        train(
            "vit", data=corpus, out=run, recipe="digits", settings=settings, seed=seed, quiet=True
        )
        vit, vit_nats = evaluate_vit(run, corpus, "test")
        validation, _ = evaluate_vit(run, corpus, "validation")
    linear, linear_nats = evaluate_linear(corpus)
    return {
        "seed": seed,
        "vit accuracy": float(vit.mean()),
        "linear accuracy": float(linear.mean()),
        "vit nats": vit_nats,
        "linear nats": linear_nats,
        "vit alone right": int((vit & ~linear).sum()),
        "linear alone right": int((linear & ~vit).sum()),
        "vit validation accuracy": float(validation.mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--set", nargs="*", default=[], help="settings of vit or its training, as name=value"
    )
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in arguments.set)
    rows = []
    for seed in range(arguments.seeds):
        rows.append(compare_models(seed, settings))
        print("  ".join(f"{name} {value:.4g}" for name, value in rows[-1].items()), flush=True)
    summary = {
        name: statistics.mean(row[name] for row in rows) for name in rows[0] if name != "seed"
    }
    gains = [row["vit accuracy"] - row["linear accuracy"] for row in rows]
    summary["lowest gain"], summary["highest gain"] = min(gains), max(gains)
    print("mean  " + "  ".join(f"{name} {value:.4g}" for name, value in summary.items()))
    if arguments.out is not None:
        record = {"rows": rows, "mean": summary, "settings": settings}
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
