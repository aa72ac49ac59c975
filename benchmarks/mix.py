"""Interpolation of an n-gram model and an LSTM on multi30k, tuned on its validation split.

The classic expectation (Mikolov et al. 2010, Recurrent neural network based language model): the
mixture has a lower perplexity than either. The LSTM is small and briefly trained, so that a seed
takes minutes on one core.

    python benchmarks/mix.py --data DATA --out RUNS
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from record_file import RESULTS, Record, add_missing

RECORD = RESULTS / "mix.json"
SEEDS = (0, 1, 2)
LSTM = {"width": 128, "learning_rate": 0.005, "tokens_per_batch": 1024}
EPOCHS = 2


def measure(data: Path, runs: Path, seed: int) -> Record:
    """Train both models, mix them, and return the figures on the validation and the test split."""
    import lmlab

    corpus = f"multi30k:{data}"
    ngram, lstm, out = runs / "ngram", runs / f"lstm-{seed}", runs / f"mix-{seed}"
    if not ngram.exists():
        lmlab.train("ngram", data=corpus, out=ngram)
    trained = lmlab.train(
        "lstm", data=corpus, out=lstm, settings=LSTM, epochs=EPOCHS, seed=seed, resume=lstm.exists()
    )
    if trained.reason == "interrupted":  # a half-trained model is no record
        raise KeyboardInterrupt
    shutil.rmtree(out, ignore_errors=True)  # killed before its record
    result = lmlab.mix([ngram, lstm], out=out)
    return {
        "weights": list(result.weights),
        "iterations": 0 if result.fit is None else result.fit.iterations,
        "nats_per_token": {
            figures.split: {
                "ngram": figures.runs[0],
                "lstm": figures.runs[1],
                "mix": figures.mixture,
            }
            for figures in result.figures
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("LMLAB_DATA"))
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("the data folder is missing; give --data or set LMLAB_DATA")
    configurations = ({"seed": seed} for seed in SEEDS)
    add_missing(
        RECORD, configurations, lambda seed: measure(Path(arguments.data), arguments.out, seed)
    )


if __name__ == "__main__":
    main()
