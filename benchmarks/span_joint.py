"""Joint and independent span filling: KL from the true joint distribution on `capitals`.

    python benchmarks/span_joint.py [--only NAME] [--steps 3500] [--out FILE.json]
    python benchmarks/span_joint.py --draw FILE.json --figure FILE.svg

In 甲甲的首都是乙乙 all letters of the country and of its capital are masked. The language
defines the probability of each filling, and KL(truth || model) is summed over them
for every pair of lengths, weighted by the lengths' mass. A model is evaluated by up to
three methods: the product of its single-mask distributions; the chain rule, one masked
position after another, with a new forward pass each time; and its own joint distribution.

`bert` masks 15 % of the letters as BERT does. `independent` is `span-joint` with one
state: masked as for `chain` and `tree`, but without dependencies between the masked
positions. All have the same encoder, batches and steps. Results are added to an existing
--out file, so that models can be trained one at a time.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

from finishing import finished

SENTENCES = 20_000
ENCODER = {
    "width": 64,
    "layers": 2,
    "heads": 4,
    "length": 32,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "learning_rate": 3e-3,
    "schedule": "cosine",
    "warmup_steps": 100,
    "tokens_per_batch": 512,
    "weight_decay": 0.01,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {"pairs": "none", "segments": 0, "masking": "dynamic"}),
    "independent": ("span-joint", {"states": 1, "rank": 4}),
    "chain": ("span-joint", {"states": 64, "rank": 16}),
    "tree": ("span-joint", {"states": 64, "rank": 16, "dependencies": "tree"}),
}
RELATION_TEXT = "的首都是"
EXAMPLE_FILLINGS = ("中国的首都是北京", "中国的首都是北黎")
"""A correct and a wrong filling; a product of marginals can't reject the wrong one."""


def train(name: str, steps: int, seed: int) -> tuple[Any, dict[str, Any]]:
    """The model and its training cost."""
    import lmlab
    from lmlab.data.languages import capitals

    system, settings = MODELS[name]
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = finished(
            lmlab.train(
                system,
                data=capitals.corpus(sentences=SENTENCES),
                out=Path(folder) / "run",
                settings=ENCODER | settings,
                steps=steps,
                seed=seed,
                quiet=True,
            )
        )
        model = lmlab.load(result.path)
    timing = {"seconds": result.seconds, "cpu_seconds": time.process_time() - start}
    return model, {"validation_loss": result.best, "steps": steps, "seed": seed, **timing}


def fillings_by_length() -> dict[tuple[int, int], list[tuple[str, float]]]:
    """Fillings and their true probabilities, by the lengths of country and capital."""
    from lmlab.data.countries import country_table
    from lmlab.data.languages import capitals

    truth, fillings = capitals.truth(), dict[tuple[int, int], list[tuple[str, float]]]()
    for pair in country_table():
        text = f"{pair.country_zh}{RELATION_TEXT}{pair.capital_zh}"
        lengths = len(pair.country_zh), len(pair.capital_zh)
        fillings.setdefault(lengths, []).append((text, truth.probabilities[text]))
    return fillings


def log_probs(model: Any, texts: list[str], lengths: tuple[int, int]) -> dict[str, Any]:
    """(texts,) log-probability of the masked letters of each text, by method."""
    import torch

    from lmlab.core.batch import Batch
    from lmlab.core.protocols import JointFill

    vocabulary = model.system.vocabulary
    rows = [[vocabulary.start, *model.tokenizer.encode(text), vocabulary.end] for text in texts]
    batch = Batch.collate(rows, pad=vocabulary.pad)
    country, capital = lengths
    positions = [*range(1, 1 + country), *range(5 + country, 5 + country + capital)]
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[:, positions] = True
    targets = batch.tokens[:, positions]

    def target_log_prob(blank: int, mask: torch.Tensor, offset: int) -> torch.Tensor:
        """Log-probability of the target at one blank; `offset` counts the masked positions."""
        single = model.system.fill(batch, mask).log_probs.view(len(texts), -1, vocabulary.size)
        return single[:, offset].gather(1, targets[:, blank, None])[:, 0].double()

    with torch.no_grad():
        by_method = {
            "product": sum(target_log_prob(blank, masked, blank) for blank in range(len(positions)))
        }
        still_masked = masked.clone()
        by_method["chain rule"] = torch.zeros(len(texts), dtype=torch.float64)
        for blank, position in enumerate(positions):
            by_method["chain rule"] += target_log_prob(blank, still_masked, 0)
            still_masked[:, position] = False
        if isinstance(model.system, JointFill):
            joint = model.system.joint_fill(batch, masked)
            by_method["joint"] = joint.log_prob(targets.flatten()).double()
    return by_method


def measure(model: Any) -> dict[str, Any]:
    """KL by method, for the lengths of 中国 and 北京 and over all lengths."""
    import torch

    kl_two_and_two, total, mass = {}, dict[str, float](), 0.0
    for lengths, fillings in fillings_by_length().items():
        probabilities = torch.tensor([p for _, p in fillings], dtype=torch.float64)
        length_mass = float(probabilities.sum())
        truth = probabilities / length_mass
        by_method = log_probs(model, [text for text, _ in fillings], lengths)
        kl = {method: float((truth * (truth.log() - q)).sum()) for method, q in by_method.items()}
        for method, value in kl.items():
            total[method] = total.get(method, 0.0) + length_mass * value
        mass += length_mass
        if lengths == (2, 2):
            kl_two_and_two = kl
    pair = log_probs(model, list(EXAMPLE_FILLINGS), (2, 2))
    ratios = {method: float(values[0] - values[1]) for method, values in pair.items()}
    return {
        "kl_two_and_two": kl_two_and_two,
        "kl_all_lengths": {method: value / mass for method, value in total.items()},
        "log_ratio_of_notes": ratios,
    }


def bound() -> dict[str, float]:
    """KL of the best independent model (the product of the true marginals), and true entropy."""
    independent, entropy, mass, bounds = 0.0, 0.0, 0.0, dict[str, float]()
    for lengths, fillings in fillings_by_length().items():
        length_mass = sum(p for _, p in fillings)
        marginals: list[dict[str, float]] = [{} for _ in fillings[0][0]]
        for text, p in fillings:
            for position, letter in enumerate(text):
                marginals[position][letter] = marginals[position].get(letter, 0.0) + p / length_mass
        kl = 0.0
        for text, p in fillings:
            product = sum(math.log(marginals[i][letter]) for i, letter in enumerate(text))
            kl += p / length_mass * (math.log(p / length_mass) - product)
            entropy -= p * math.log(p / length_mass)
        independent += length_mass * kl
        mass += length_mass
        if lengths == (2, 2):
            bounds["best_product_kl_two_and_two"] = kl
    return bounds | {"best_product_kl": independent / mass, "entropy": entropy / mass}


def plot(record: dict[str, Any], path: Path) -> None:
    """Plot KL, one bar per model and method, for lengths (2, 2) and over all lengths."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    methods = ("product", "chain rule", "joint")
    names = [name for name in MODELS if name in record["models"]]
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.8))
    panels = (
        ("lengths (2, 2)", "kl_two_and_two", "best_product_kl_two_and_two"),
        ("all lengths", "kl_all_lengths", "best_product_kl"),
    )
    for axis, (title, kl_key, bound_key) in zip(axes, panels, strict=True):
        for number, method in enumerate(methods):
            values = [record["models"][name][kl_key].get(method) for name in names]
            bars = [(i + 0.27 * (number - 1), kl) for i, kl in enumerate(values) if kl is not None]
            positions, heights = zip(*bars, strict=True)
            container = axis.bar(positions, heights, width=0.25, label=method)
            axis.bar_label(container, fmt="%.1f", fontsize=7)
        best = record["bound"][bound_key]
        axis.axhline(best, color="grey", linestyle=":", label="best product of marginals")
        axis.set(title=title, xticks=range(len(names)), xticklabels=names)
    axes[0].set(ylabel="KL from the true joint, nats")
    axes[1].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=MODELS, action="append", help="train this model only")
    parser.add_argument("--steps", type=int, default=3500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path, help="plot this record instead of training")
    parser.add_argument("--figure", type=Path, default=Path("span-joint.svg"))
    options = parser.parse_args()
    if options.draw:
        plot(json.loads(options.draw.read_text(encoding="utf-8")), options.figure)
        return
    import torch

    torch.set_num_threads(1)
    for name in options.only or MODELS:
        model, training = train(name, options.steps, options.seed)
        results = {**training, "settings": MODELS[name][1], **measure(model)}
        print(name, json.dumps(results, ensure_ascii=False), flush=True)
        if options.out is None:
            continue
        # Read just before writing: another process may have added a model.
        record = {"models": {}}
        if options.out.exists():
            record = json.loads(options.out.read_text(encoding="utf-8"))
        record |= {"sentences": SENTENCES, "encoder": ENCODER, "bound": bound()}
        record["models"][name] = results
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
