"""CoVe: a translator's encoder as features of a sentence classifier, with and without word vectors.

    python benchmarks/cove.py --data DATA --runs RUNS --out benchmarks/results/cove.json

McCann et al. 2017: the states of a translator's bidirectional encoder are concatenated with GloVe
vectors, [GloVe(w); CoVe(w)]. Here the translator (seq2seq-attention, English to German) and GloVe
are trained on multi30k, the smallest of the paper's three corpora; a text is the mean over its
words, standardised, and the classifier is logistic regression on SST-2 with the first rows of the
training file. The controls are the same encoder untrained, and each half alone. A trained run is
reused.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from finishing import finished
from numpy.typing import NDArray

import lmlab
from lmlab.core.atomic_files import write_text
from lmlab.scoring.word_vectors import WordVectors

TRANSLATOR = {
    "width": 128,
    "cell": "lstm",
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "warmup_steps": 100,
    "tokens_per_batch": 1024,
    "vocabulary_size": 8000,
}
GLOVE = {"width": 50}
PENALTIES = (1e-3, 1e-2, 1e-1)
"""Weights of the L2 penalty, chosen on the development rows."""

Features = NDArray[np.float32]


def train_translator(data: Path, out: Path, *, steps: int, seed: int) -> Path:
    """A translator from English; without training if `steps` is 1."""
    untrained = {"learning_rate": 1e-12} if steps == 1 else {}
    if not (out / "model.safetensors").exists():
        finished(
            lmlab.train(
                "seq2seq-attention",
                data=f"parallel:en-de:{data / 'multi30k'}",
                out=out,
                tokenizer="bpe",
                settings={**TRANSLATOR, **untrained},
                steps=steps,
                seed=seed,
                resume=(out / "config.json").exists(),
                quiet=True,
            )
        )
    return out


def train_glove(data: Path, out: Path) -> Path:
    if not (out / "config.json").exists():
        text = str(data / "multi30k" / "train.en")
        finished(lmlab.train("glove", data=text, out=out, settings=GLOVE, quiet=True))
    return out


def read_rows(path: Path, limit: int | None = None) -> tuple[list[str], NDArray[np.int64]]:
    """Sentences of a GLUE file, and their labels."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[:limit]
    return [row["sentence"] for row in rows], np.array([int(row["label"]) for row in rows])


def encoder_states(run: Path, texts: list[str]) -> Features:
    """The mean of the encoder's states of each text."""
    records = lmlab.load(run).encode(texts, pooling="mean")
    return np.stack([record.vector for record in records])


def mean_word_vectors(words: WordVectors, texts: list[str]) -> Features:
    """The mean vector of the known words of each text; zeros if there is none."""
    means = np.zeros((len(texts), words.vectors.shape[1]), dtype=np.float32)
    for row, text in enumerate(texts):
        known = [words.index[word] for word in text.split() if word in words.index]
        if known:
            means[row] = words.vectors[known].mean(0)
    return means


def accuracy(features: list[Features], labels: list[NDArray[np.int64]]) -> dict[str, float]:
    """Logistic regression on training features; accuracy on test at the best penalty on dev."""
    mean, std = features[0].mean(0), features[0].std(0) + 1e-6
    train, *held_out = (torch.from_numpy((values - mean) / std) for values in features)
    target, *answers = (torch.from_numpy(values) for values in labels)
    best = {"dev": -1.0, "test": 0.0, "penalty": 0.0}
    for penalty in PENALTIES:
        head = fit_head(train, target, penalty)
        with torch.no_grad():
            dev, test = (
                float((head(x).argmax(1) == y).float().mean())
                for x, y in zip(held_out, answers, strict=True)
            )
        if dev > best["dev"]:
            best = {"dev": dev, "test": test, "penalty": penalty}
    return best


def fit_head(features: torch.Tensor, labels: torch.Tensor, penalty: float) -> torch.nn.Linear:
    """Logistic regression with an L2 penalty, by L-BFGS from zeros."""
    head = torch.nn.Linear(features.shape[1], 2)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=100)

    def loss() -> float:
        optimizer.zero_grad()
        value = F.cross_entropy(head(features), labels) + penalty * head.weight.square().sum()
        value.backward()
        return float(value.detach())

    optimizer.step(loss)
    return head


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    data, runs = arguments.data, arguments.runs
    splits = [
        read_rows(data / "sst2" / "train.tsv", arguments.examples),
        read_rows(data / "sst2" / "dev.tsv"),
        read_rows(data / "sst2" / "test.tsv"),
    ]
    texts, labels = [split[0] for split in splits], [split[1] for split in splits]
    words = lmlab.words(train_glove(data, runs / "glove"))
    static = [mean_word_vectors(words, split) for split in texts]
    rows: dict[str, Any] = {"majority": float(max(np.bincount(labels[2])) / len(labels[2]))}
    rows["glove"] = accuracy(static, labels)
    for name, steps in (("untrained", 1), ("cove", arguments.steps)):
        run = train_translator(data, runs / f"{name}.{steps}", steps=steps, seed=arguments.seed)
        states = [encoder_states(run, split) for split in texts]
        both = [np.concatenate(pair, 1) for pair in zip(static, states, strict=True)]
        rows[name] = accuracy(states, labels)
        rows[f"glove + {name}"] = accuracy(both, labels)
    return {
        "steps": arguments.steps,
        "examples": len(texts[0]),
        "test rows": len(texts[2]),
        "seed": arguments.seed,
        "accuracy": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/cove"))
    parser.add_argument("--steps", type=int, default=1500, help="steps of the translator")
    parser.add_argument("--examples", type=int, default=4000, help="training rows of SST-2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    record = measure(arguments)
    for name, row in record["accuracy"].items():
        print(f"{name:20} {row if name == 'majority' else row['test']:.3f}", flush=True)
    write_text(arguments.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
