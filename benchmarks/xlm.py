"""Cross-lingual alignment in XLM: is the translation of a sentence the nearest sentence?

    python benchmarks/xlm.py --data DATA --runs RUNS --records benchmarks/results [--epochs 6]

Trains XLM on multi30k's German and English in four ways: not at all, by masked LM of single sides
(mlm), by translation LM (tlm), and by both (mlm+tlm). Each sees about as many tokens: an epoch of
mlm shows one side of each pair. Then the 1,000 test sentences of each language are encoded by
themselves, as means of the hidden states of each layer, and the nearest sentence of the other
language by cosine is its translation or not (chance: 0.1 %). `centred` first subtracts the mean of
each language's vectors. A record is not measured again; a training that was stopped continues. With
--unfinished the runs that there are are measured as they are (best validation so far), without a
record.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from experiment import Experiment
from finishing import finished
from numpy.typing import NDArray

import lmlab
from lmlab.core.atomic_files import write_text
from lmlab.data.corpus import open_corpus

SHARES = {"untrained": 0.5, "mlm": 0.0, "mlm+tlm": 0.5, "tlm": 1.0}
"""Translation share of each variant."""
LANGUAGES = ("de", "en")
SETTINGS = {
    "width": 128,
    "layers": 4,
    "heads": 4,
    "length": 64,
    "dropout": 0.1,
    "languages": LANGUAGES,
    "learning_rate": 1e-3,
    "schedule": "cosine",
    "warmup_steps": 200,
    "tokens_per_batch": 1024,
    "vocabulary_size": 8000,
}
EPOCHS = 24
"""Epochs of mlm; a short run has 6."""
MINUTES_PER_EPOCH = 1.0


def experiments() -> list[Experiment]:
    """One for each variant and seed."""
    return [
        Experiment(
            name=f"xlm.{variant}.seed{seed}",
            group="xlm",
            command=(
                "benchmarks/xlm.py",
                *("--data", "{data}", "--runs", "{runs}/xlm", "--records", "{records}"),
                *("--only", variant, "--seed", str(seed), "--epochs", str(EPOCHS)),
            ),
            minutes=EPOCHS * MINUTES_PER_EPOCH if variant != "untrained" else 1,
            record=record_name(variant, EPOCHS, seed),
            run=f"xlm/{run_name(variant, EPOCHS, seed)}",
            epochs=epochs_of(variant, EPOCHS),
        )
        for seed in range(3)
        for variant in SHARES
    ]


def run_name(variant: str, epochs: int, seed: int) -> str:
    return f"{variant}.epochs{epochs}.seed{seed}"


def record_name(variant: str, epochs: int, seed: int) -> str:
    return f"xlm/{run_name(variant, epochs, seed)}.json"


def epochs_of(variant: str, epochs: int) -> int:
    """As many tokens as `epochs` of mlm: a pair is twice as long as one side."""
    return 1 if variant == "untrained" else round(epochs / (1 + SHARES[variant]))


def train(variant: str, data: str, out: Path, *, epochs: int, seed: int) -> Path:
    """The run of a variant."""
    untrained = variant == "untrained"
    settings = {**SETTINGS, "translation_share": SHARES[variant]}
    finished(
        lmlab.train(
            "xlm",
            data=data,
            out=out,
            settings=settings | ({"learning_rate": 1e-12} if untrained else {}),
            tokenizer="bpe",
            epochs=None if untrained else epochs_of(variant, epochs),
            steps=1 if untrained else None,
            seed=seed,
            resume=(out / "config.json").exists(),
            quiet=True,
        )
    )
    return out


def retrieval(run: Path, data: str) -> list[dict[str, float]]:
    """Shares of sentences whose translation is the nearest, by layer, 0 the embeddings."""
    pairs = list(open_corpus(data).split("test"))
    texts = {"de": [p.condition or "" for p in pairs], "en": [p.text for p in pairs]}
    layers = []
    for layer in range(SETTINGS["layers"] + 1):
        de, en = (
            np.stack(
                [
                    record.vector
                    for record in lmlab.load(run, language=language).encode_stream(
                        texts[language], layer=layer, pooling="mean"
                    )
                ]
            )
            for language in LANGUAGES
        )
        figures = {"layer": layer}
        for name, sources, targets in (
            ("raw", de, en),
            ("centred", de - de.mean(0), en - en.mean(0)),
        ):
            similarity = cosine(sources, targets)
            figures[f"{name} de-en"] = accuracy(similarity)
            figures[f"{name} en-de"] = accuracy(similarity.T)
        layers.append(figures)
    return layers


def cosine(sources: NDArray[np.float32], targets: NDArray[np.float32]) -> NDArray[np.float32]:
    def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    return unit(sources) @ unit(targets).T


def accuracy(similarity: NDArray[np.float32]) -> float:
    """Share of rows whose most similar column is that of the same number."""
    return float((similarity.argmax(1) == np.arange(len(similarity))).mean())


def measure(variant: str, arguments: argparse.Namespace) -> dict[str, Any]:
    data = f"multi30k-de-en:{arguments.data}"
    out = arguments.runs / run_name(variant, arguments.epochs, arguments.seed)
    start = time.perf_counter()
    run = train(variant, data, out, epochs=arguments.epochs, seed=arguments.seed)
    seconds = time.perf_counter() - start
    return {
        "variant": variant,
        "seed": arguments.seed,
        "epochs": epochs_of(variant, arguments.epochs),
        "training seconds of the last start": round(seconds),
        "retrieval": retrieval(run, data),
    }


def print_retrieval(name: str, layers: list[dict[str, float]]) -> None:
    for row in layers:
        shares = (f"{key} {value:.1%}" for key, value in row.items() if key != "layer")
        print(f"{name:10} layer {row['layer']}: {', '.join(shares)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/xlm"))
    parser.add_argument("--records", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--only", choices=SHARES, action="append")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="epochs of mlm")
    parser.add_argument("--unfinished", action="store_true", help="measure runs as they are")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for variant in arguments.only or SHARES:
        if arguments.unfinished:
            run = arguments.runs / run_name(variant, arguments.epochs, arguments.seed)
            print_retrieval(variant, retrieval(run, f"multi30k-de-en:{arguments.data}"))
            continue
        path = arguments.records / record_name(variant, arguments.epochs, arguments.seed)
        if not path.exists():
            record = measure(variant, arguments)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(record, indent=1) + "\n")
        print_retrieval(variant, json.loads(path.read_text(encoding="utf-8"))["retrieval"])


if __name__ == "__main__":
    main()
