"""Correlation of energies from masked inputs and from candidates as inputs (the claim of `ebm`).

    python benchmarks/energies_correlate.py [--epochs 8] [--seeds 1] [--out FILE.json]
    python benchmarks/energies_correlate.py --draw FILE.json --figure FILE.svg

A `bert` and two `ebm` are trained on `capitals`: one with the default pooling, the other pooled
over blanks. Texts of the language and one-letter corruptions of them, which are not in it, are
scored:

- masked: each letter masked in turn, its log-probability (`norm`) or its logit (`raw`) summed;
- fed: nothing masked, BERT's own logits of the input letters (`simple`), and -E of ebm.

Compared is the change due to a corruption, score(corrupted) - score(text), which removes the effect
of length and of the text's own frequency: Pearson's and Spearman's correlation over all pairs, and
how often a text scores above its corruption.
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


def corruptions(texts: list[str], held: Any, seed: int) -> list[tuple[str, str]]:
    """Each text with one letter replaced, unless the result is in the language too."""
    import numpy as np

    generator = np.random.default_rng(seed)
    letters = sorted({letter for text in held for letter in text})
    pairs = []
    for text in texts:
        place, letter = int(generator.integers(len(text))), str(generator.choice(letters))
        other = text[:place] + letter + text[place + 1 :]
        if other not in held:
            pairs.append((text, other))
    return pairs


def changes(runs: dict[str, Path], pairs: list[tuple[str, str]]) -> dict[str, list[float]]:
    """By each score, the change due to a corruption."""
    import lmlab

    models = {name: lmlab.load(path) for name, path in runs.items()}
    sides = [list(side) for side in zip(*pairs, strict=True)]
    found = {}
    for name, (model, method) in SCORES.items():
        texts, others = (
            [score.total for score in models[model].score(side, method=method)] for side in sides
        )
        found[name] = [round(b - a, 3) for a, b in zip(texts, others, strict=True)]
    return found


def correlations(changed: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Pearson's and Spearman's of each two scores, with Pearson's standard error by Fisher's z."""
    import numpy as np

    def pearson(first: Any, second: Any) -> float:
        return float(np.corrcoef(first, second)[0, 1])

    def ranks(values: list[float]) -> Any:
        return np.argsort(np.argsort(values))

    found = []
    for (a, first), (b, second) in itertools.combinations(changed.items(), 2):
        linear = pearson(first, second)
        error = (1 - linear**2) / (len(first) - 3) ** 0.5
        spearman = pearson(ranks(first), ranks(second))
        found.append({"of": [a, b], "pearson": linear, "error": error, "spearman": spearman})
    return found


def run_one(seed: int, epochs: int) -> dict[str, Any]:
    """Train the three, score the pairs, correlate."""
    import torch

    import lmlab
    from lmlab.data.languages import capitals

    torch.set_num_threads(1)
    begun, corpus = time.perf_counter(), capitals.corpus(sentences=SENTENCES)
    texts = [example.text for example in corpus.splits["test"]][:PAIRS]
    pairs = corruptions(texts, capitals.truth().probabilities, seed)
    with tempfile.TemporaryDirectory() as folder:
        runs, seconds = {}, {}
        for name, (system, more) in MODELS.items():
            words = {"settings": SETTINGS | more, "seed": seed, "epochs": epochs, "quiet": True}
            result = finished(lmlab.train(system, data=corpus, out=Path(folder) / name, **words))
            runs[name], seconds[name] = result.path, result.seconds
        changed = changes(runs, pairs)
    return {
        "seed": seed,
        "pairs": len(pairs),
        "texts_above_corruptions": {
            name: sum(change < 0 for change in values) / len(values)
            for name, values in changed.items()
        },
        "correlations": correlations(changed),
        "changes": changed,
        "seconds": seconds | {"all": time.perf_counter() - begun},
    }


def draw(record: dict[str, Any], path: Path) -> None:
    """Plot the changes by each score without masks against those by `norm`, one dot per pair."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    names = [name for name in SCORES if name.endswith("(fed)")]
    masked = record["changes"]["norm (masked)"]
    figure, axes = pyplot.subplots(1, len(names), figsize=(3.4 * len(names), 3.2))
    for axis, name in zip(axes, names, strict=True):
        axis.scatter(masked, record["changes"][name], s=5, alpha=0.5)
        (found,) = (
            each for each in record["correlations"] if each["of"] == ["norm (masked)", name]
        )
        axis.set(title=f"{name}: r = {found['pearson']:.2f}", xlabel="norm (masked)")
        axis.axhline(0, color="grey", linewidth=0.5)
        axis.axvline(0, color="grey", linewidth=0.5)
    axes[0].set(ylabel="change by a corruption, nats")
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
        draw(json.loads(options.draw.read_text(encoding="utf-8"))["records"][0], options.figure)
        return
    records = [run_one(seed, options.epochs) for seed in range(options.seeds)]
    for record in records:
        for each in record["correlations"]:
            print(f"{' / '.join(each['of'])}: {each['pearson']:.3f} ± {each['error']:.3f}")
        print(json.dumps(record["texts_above_corruptions"]), record["seconds"])
    told = {
        "command": "python benchmarks/energies_correlate.py "
        f"--epochs {options.epochs} --seeds {options.seeds}",
        "sentences": SENTENCES,
        "settings": SETTINGS,
        "models": {name: {"system": s, **more} for name, (s, more) in MODELS.items()},
        "threads": 1,
        "records": records,
    }
    options.out.write_text(json.dumps(told) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
