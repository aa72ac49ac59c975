"""Does a relation of k hops need k layers? Accuracy by depth on the language `hops`.

    python benchmarks/hops.py [--depths 1,2,3,4] [--seeds 1] [--jobs 2] [--out FILE.json]
    python benchmarks/hops.py --figure FILE.svg [--out FILE.json]

For each depth a `gpt` is trained on texts that describe a ring of letters in pairs and ask where 1
to K hops lead: once with scaled dot-product attention and once with normalised queries and keys
(cosine attention). Reported is the accuracy of the most probable answer on held-out texts, by
number of hops. Chance level is 1 / (n - 1), as the start is excluded. Records are saved as they
are measured; existing ones are skipped.
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

    correct: dict[int, list[bool]] = {hops: [] for hops in range(1, truth.hops + 1)}
    generator = np.random.default_rng(12345)
    vocabulary = model.system.vocabulary
    for _ in range(TEST):
        words = truth.sample(generator).split(" ")
        ids = [vocabulary.start, *model.tokenizer.encode(" ".join(words))]
        batch = Batch.collate([ids], pad=vocabulary.pad)
        with torch.no_grad():
            view = model.system.objective.view(batch)
            last = model.system.emission.log_probs(model.system.hidden(view).values[0, -1])
        correct[words.count("?")].append(int(last.argmax()) == ids[-1])
    return {str(hops): sum(outcomes) / len(outcomes) for hops, outcomes in correct.items()}


def run_in_subprocess(depth: int, cosine: bool, seed: int, epochs: int) -> dict[str, Any]:
    """Call run_one in a separate process with one thread."""
    arguments = json.dumps([depth, cosine, seed, epochs])
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, __file__, "--one", arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    record: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    summary = " ".join(f"{hops}:{share:.3f}" for hops, share in record["accuracy"].items())
    print(f"depth {depth} cosine {cosine} seed {seed}: {summary}", flush=True)
    return record


def plot(records: list[dict[str, Any]], path: Path) -> None:
    """Plot accuracy by depth, one line per number of hops, one panel per attention type."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for axis, cosine in zip(axes, (False, True), strict=True):
        selected = [record for record in records if record["cosine"] == cosine]
        depths = sorted({record["depth"] for record in selected})
        for hops in range(1, HOPS + 1):
            means = []
            for depth in depths:
                values = [r["accuracy"][str(hops)] for r in selected if r["depth"] == depth]
                means.append(sum(values) / len(values))
            axis.plot(depths, means, marker="o", label=f"{hops} hop{'s' if hops > 1 else ''}")
        axis.axhline(1 / (LETTERS - 1), color="grey", linestyle=":", label="chance")
        axis.set(title="normalised queries and keys" if cosine else "scaled dot product")
        axis.set(xlabel="layers", xticks=depths, ylim=(0, 1.03))
    axes[0].set(ylabel="accuracy")
    axes[1].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)


def read_records(path: Path) -> list[dict[str, Any]]:
    """Records of earlier runs."""
    if not path.exists():
        return []
    records: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["records"]
    return records


def save_records(path: Path, records: list[dict[str, Any]]) -> None:
    results = {"letters": LETTERS, "hops": HOPS, "sentences": SENTENCES, "records": records}
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


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
    records = read_records(options.out)
    if options.figure:
        plot(records, options.figure)
        return
    done = {(r["depth"], r["cosine"], r["seed"], r["epochs"]) for r in records}
    configurations = [
        (int(depth), cosine, seed, options.epochs)
        for seed in range(options.seeds)
        for depth in options.depths.split(",")
        for cosine in (False, True)
    ]
    missing = [configuration for configuration in configurations if configuration not in done]
    with ThreadPoolExecutor(options.jobs) as pool:
        for future in as_completed(
            [pool.submit(run_in_subprocess, *configuration) for configuration in missing]
        ):
            records.append(future.result())
            save_records(options.out, records)


if __name__ == "__main__":
    main()
