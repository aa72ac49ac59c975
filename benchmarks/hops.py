"""Does a relation of k hops need k layers? Accuracy by depth on the language `hops`.

    python benchmarks/hops.py [--depths 1,2,3,4] [--seeds 1] [--jobs 2] [--out FILE.json]
    python benchmarks/hops.py --figure FILE.svg [--out FILE.json]

For each depth a `gpt` is trained on texts that describe a ring of letters in pairs and ask where 1
to K hops lead; twice, with scaled dot-product attention and with normalised queries and keys.
Reported is the accuracy of the most probable answer by the number of hops, on held-out texts.
Chance among the letters other than the start is 1 / (n - 1). Records are saved as they are
measured; existing ones are not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from finishing import finished

LETTERS, HOPS, SENTENCES = 6, 4, 60_000
TEST = 2000
RESULT = Path(__file__).parent / "results" / "hops.json"


def settings(depth: int, cosine: bool) -> dict[str, Any]:
    return {
        "width": 64,
        "layers": depth,
        "heads": 2,
        "length": 32,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "cosine": cosine,
        "learning_rate": 1e-3,
        "schedule": "cosine",
        "warmup_steps": 200,
        "tokens_per_batch": 2048,
        "weight_decay": 0.01,
    }


def run_one(depth: int, cosine: bool, seed: int, epochs: int) -> dict[str, Any]:
    """Train and query one model; accuracy by the number of hops."""
    import torch

    import lmlab
    from lmlab.data.languages import hops

    torch.set_num_threads(1)
    corpus = hops.corpus(letters=LETTERS, hops=HOPS, sentences=SENTENCES)
    with tempfile.TemporaryDirectory() as folder:
        result = finished(
            lmlab.train(
                "gpt",
                data=corpus,
                out=Path(folder) / "run",
                settings=settings(depth, cosine),
                epochs=epochs,
                seed=seed,
                quiet=True,
            )
        )
        model = lmlab.load(result.path)
    return {
        "depth": depth,
        "cosine": cosine,
        "seed": seed,
        "epochs": epochs,
        "seconds": result.seconds,
        "regret_nats_per_text": regret(result, corpus),
        "accuracy": accuracy(model, hops.HopsTruth(letters=LETTERS, hops=HOPS)),
    }


def regret(result: Any, corpus: Any) -> float:
    """Validation loss minus the true entropy, in nats per text."""
    truth = corpus.truth
    return float(result.best) * truth.expected_tokens - truth.entropy


def accuracy(model: Any, truth: Any) -> dict[str, float]:
    """Accuracy of the most probable answer, by number of hops."""
    import numpy as np
    import torch

    from lmlab.core.batch import Batch

    right: dict[int, list[bool]] = {hops: [] for hops in range(1, truth.hops + 1)}
    generator = np.random.default_rng(12345)
    vocabulary = model.system.vocabulary
    for _ in range(TEST):
        words = truth.sample(generator).split(" ")
        ids = [vocabulary.start, *model.tokenizer.encode(" ".join(words))]
        batch = Batch.collate([ids], pad=vocabulary.pad)
        with torch.no_grad():
            view = model.system.objective.view(batch)
            last = model.system.emission.log_probs(model.system.hidden(view).values[0, -1])
        right[words.count("?")].append(int(last.argmax()) == ids[-1])
    return {str(hops): sum(found) / len(found) for hops, found in right.items()}


def run_apart(depth: int, cosine: bool, seed: int, epochs: int) -> dict[str, Any]:
    """The same in a separate process with one thread."""
    asked = json.dumps([depth, cosine, seed, epochs])
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, "--one", asked],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    told = " ".join(f"{hops}:{share:.3f}" for hops, share in found["accuracy"].items())
    print(f"depth {depth} cosine {cosine} seed {seed}: {told}", flush=True)
    return found


def draw(records: list[dict[str, Any]], path: Path) -> None:
    """Plot accuracy by depth, one line per number of hops, one panel per kind of attention."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for axis, cosine in zip(axes, (False, True), strict=True):
        chosen = [record for record in records if record["cosine"] == cosine]
        depths = sorted({record["depth"] for record in chosen})
        for hops in range(1, HOPS + 1):
            means = []
            for depth in depths:
                found = [r["accuracy"][str(hops)] for r in chosen if r["depth"] == depth]
                means.append(sum(found) / len(found))
            axis.plot(depths, means, marker="o", label=f"{hops} hop{'s' if hops > 1 else ''}")
        axis.axhline(1 / (LETTERS - 1), color="grey", linestyle=":", label="guessing")
        axis.set(title="normalised queries and keys" if cosine else "scaled products")
        axis.set(xlabel="layers", xticks=depths, ylim=(0, 1.03))
    axes[0].set(ylabel="accuracy")
    axes[1].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)


def kept(path: Path) -> list[dict[str, Any]]:
    """The records of earlier calls."""
    if not path.exists():
        return []
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["records"]
    return found


def keep(path: Path, records: list[dict[str, Any]]) -> None:
    told = {"letters": LETTERS, "hops": HOPS, "sentences": SENTENCES, "records": records}
    path.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depths", default="1,2,3,4")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--figure", type=Path, help="plot the records instead of training")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_one(*json.loads(options.one))))
        return
    records = kept(options.out)
    if options.figure:
        draw(records, options.figure)
        return
    done = {(r["depth"], r["cosine"], r["seed"], r["epochs"]) for r in records}
    asked = [
        (int(depth), cosine, seed, options.epochs)
        for seed in range(options.seeds)
        for depth in options.depths.split(",")
        for cosine in (False, True)
    ]
    missing = [each for each in asked if each not in done]
    with ThreadPoolExecutor(options.jobs) as pool:
        for future in as_completed([pool.submit(run_apart, *each) for each in missing]):
            records.append(future.result())
            keep(options.out, records)


if __name__ == "__main__":
    main()
