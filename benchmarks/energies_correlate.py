"""Correlation of energies from masked inputs and from candidates as inputs (the claim of `ebm`).

    python benchmarks/energies_correlate.py [--epochs 8] [--seeds 1] [--out FILE.json]
    python benchmarks/energies_correlate.py --draw FILE.json --figure FILE.svg

A `bert` and two `ebm` are trained on `capitals`: one with the default pooling, the other pooled
over blanks only. Scored are texts of the language and one-letter corruptions of them, which are not
in it:

- masked: mask one letter at a time; sum its log-probability (`norm`) or its logit (`raw`);
- fed: no masks; sum BERT's logits of the input letters (`simple`), or take -E of `ebm`.

The scores are compared by the change due to a corruption, score(corrupted) - score(text), which
removes the effect of the text's length and frequency. Reported are Pearson and Spearman
correlations over all pairs, and how often a text scores above its corruption.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from finishing import finished

SENTENCES, PAIRS = 6000, 600
SETTINGS: dict[str, Any] = {
    "width": 64,
    "layers": 2,
    "heads": 4,
    "length": 32,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "warmup_steps": 50,
    "tokens_per_batch": 1024,
    "weight_decay": 0.01,
    "grad_clip": 1.0,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {"pairs": "none", "segments": 0, "masking": "dynamic"}),
    "ebm": ("ebm", {}),
    "ebm-blanks": ("ebm", {"pooling": "blanks"}),
}
SCORES = {
    "norm (masked)": ("bert", "norm"),
    "raw (masked)": ("bert", "raw"),
    "simple (fed)": ("bert", "simple"),
    "ebm (fed)": ("ebm", "energy"),
    "ebm-blanks (fed)": ("ebm-blanks", "energy"),
}


def corruptions(texts: list[str], language: Any, seed: int) -> list[tuple[str, str]]:
    """Pairs of a text and its one-letter corruption; corruptions in the language are dropped."""
    import numpy as np

    generator = np.random.default_rng(seed)
    letters = sorted({letter for text in language for letter in text})
    pairs = []
    for text in texts:
        position, letter = int(generator.integers(len(text))), str(generator.choice(letters))
        corrupted = text[:position] + letter + text[position + 1 :]
        if corrupted not in language:
            pairs.append((text, corrupted))
    return pairs


def changes(runs: dict[str, Path], pairs: list[tuple[str, str]]) -> dict[str, list[float]]:
    """Score changes due to the corruption, by scoring method."""
    import lmlab

    models = {name: lmlab.load(path) for name, path in runs.items()}
    sides = [list(side) for side in zip(*pairs, strict=True)]
    score_changes = {}
    for name, (model, method) in SCORES.items():
        text_scores, corrupted_scores = (
            [score.total for score in models[model].score(side, method=method)] for side in sides
        )
        score_changes[name] = [
            round(b - a, 3) for a, b in zip(text_scores, corrupted_scores, strict=True)
        ]
    return score_changes


def correlations(score_changes: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Pearson and Spearman correlation of every two scores, with Pearson's standard error."""
    import numpy as np

    def pearson(first: Any, second: Any) -> float:
        return float(np.corrcoef(first, second)[0, 1])

    def ranks(values: list[float]) -> Any:
        return np.argsort(np.argsort(values))

    results = []
    for (a, first), (b, second) in itertools.combinations(score_changes.items(), 2):
        linear = pearson(first, second)
        error = (1 - linear**2) / (len(first) - 3) ** 0.5
        spearman = pearson(ranks(first), ranks(second))
        results.append({"of": [a, b], "pearson": linear, "error": error, "spearman": spearman})
    return results


def run_one(seed: int, epochs: int) -> dict[str, Any]:
    """Train the three models, score the pairs and correlate the scores."""
    import torch

    import lmlab
    from lmlab.data.languages import capitals

    torch.set_num_threads(1)
    start, corpus = time.perf_counter(), capitals.corpus(sentences=SENTENCES)
    texts = [example.text for example in corpus.splits["test"]][:PAIRS]
    pairs = corruptions(texts, capitals.truth().probabilities, seed)
    with tempfile.TemporaryDirectory() as folder:
        runs, seconds = {}, {}
        for name, (system, overrides) in MODELS.items():
            training_options = {
                "settings": SETTINGS | overrides,
                "seed": seed,
                "epochs": epochs,
                "quiet": True,
            }
            result = finished(
                lmlab.train(system, data=corpus, out=Path(folder) / name, **training_options)
            )
            runs[name], seconds[name] = result.path, result.seconds
        score_changes = changes(runs, pairs)
    return {
        "seed": seed,
        "pairs": len(pairs),
        "texts_above_corruptions": {
            name: sum(change < 0 for change in values) / len(values)
            for name, values in score_changes.items()
        },
        "correlations": correlations(score_changes),
        "changes": score_changes,
        "seconds": seconds | {"all": time.perf_counter() - start},
    }


def plot(record: dict[str, Any], path: Path) -> None:
    """Plot score changes without masks against those of `norm`, one dot per pair."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    names = [name for name in SCORES if name.endswith("(fed)")]
    masked = record["changes"]["norm (masked)"]
    figure, axes = pyplot.subplots(1, len(names), figsize=(3.4 * len(names), 3.2))
    for axis, name in zip(axes, names, strict=True):
        axis.scatter(masked, record["changes"][name], s=5, alpha=0.5)
        (correlation,) = (
            entry for entry in record["correlations"] if entry["of"] == ["norm (masked)", name]
        )
        axis.set(title=f"{name}: r = {correlation['pearson']:.2f}", xlabel="norm (masked)")
        axis.axhline(0, color="grey", linewidth=0.5)
        axis.axvline(0, color="grey", linewidth=0.5)
    axes[0].set(ylabel="score change due to corruption, nats")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/energies.json"))
    parser.add_argument("--draw", type=Path, help="records to plot instead of training")
    parser.add_argument("--figure", type=Path, default=Path("energies.svg"))
    options = parser.parse_args()
    if options.draw:
        plot(json.loads(options.draw.read_text(encoding="utf-8"))["records"][0], options.figure)
        return
    records = [run_one(seed, options.epochs) for seed in range(options.seeds)]
    for record in records:
        for correlation in record["correlations"]:
            names = " / ".join(correlation["of"])
            print(f"{names}: {correlation['pearson']:.3f} ± {correlation['error']:.3f}")
        print(json.dumps(record["texts_above_corruptions"]), record["seconds"])
    results = {
        "command": "python benchmarks/energies_correlate.py "
        f"--epochs {options.epochs} --seeds {options.seeds}",
        "sentences": SENTENCES,
        "settings": SETTINGS,
        "models": {
            name: {"system": system, **overrides} for name, (system, overrides) in MODELS.items()
        },
        "threads": 1,
        "records": records,
    }
    options.out.write_text(json.dumps(results) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
