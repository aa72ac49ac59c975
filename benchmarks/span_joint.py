"""Joint and independent span filling: KL from the true joint distribution on `capitals`.

    python benchmarks/span_joint.py [--only NAME] [--steps 3500] [--out FILE.json]
    python benchmarks/span_joint.py --draw FILE.json --figure FILE.svg

In 甲甲的首都是乙乙 all letters of the country and of its capital are masked. The language
defines the probability of each filling, and KL(truth || model) is summed over them
for every pair of lengths, weighted by the lengths' mass. A model is queried by up to
three methods: the product of its single-mask distributions; the chain rule, one blank
after another, with a new pass each time; and its own joint distribution.

`bert` masks 15 % of the letters as BERT does. `independent` is `span-joint` with one
state: blanks masked as for `chain` and `tree`, but without dependencies between them.
All have the same encoder, batches and steps. --out is extended, so that models can be
trained one at a time.
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
ASKED = "的首都是"
NOTES = ("中国的首都是北京", "中国的首都是北黎")
"""A right and a wrong filling; a product of marginals can't reject the second."""


def train(name: str, steps: int, seed: int) -> tuple[Any, dict[str, Any]]:
    """The model and its training cost."""
    import lmlab
    from lmlab.data.languages import capitals

    system, settings = MODELS[name]
    began = time.process_time()
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
    took = {"seconds": result.seconds, "cpu_seconds": time.process_time() - began}
    return model, {"validation_loss": result.best, "steps": steps, "seed": seed, **took}


def questions() -> dict[tuple[int, int], list[tuple[str, float]]]:
    """Fillings of each pair of lengths with their true probability given the lengths, and mass."""
    from lmlab.data.countries import country_table
    from lmlab.data.languages import capitals

    truth, found = capitals.truth(), dict[tuple[int, int], list[tuple[str, float]]]()
    for pair in country_table():
        text = f"{pair.country_zh}{ASKED}{pair.capital_zh}"
        lengths = len(pair.country_zh), len(pair.capital_zh)
        found.setdefault(lengths, []).append((text, truth.probabilities[text]))
    return found


def log_probs(model: Any, texts: list[str], lengths: tuple[int, int]) -> dict[str, Any]:
    """(texts,) log-probabilities of the masked letters of each text, by each method."""
    import torch

    from lmlab.core.batch import Batch
    from lmlab.core.protocols import JointFill

    vocabulary = model.system.vocabulary
    rows = [[vocabulary.start, *model.tokenizer.encode(text), vocabulary.end] for text in texts]
    batch = Batch.collate(rows, pad=vocabulary.pad)
    country, capital = lengths
    places = [*range(1, 1 + country), *range(5 + country, 5 + country + capital)]
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[:, places] = True
    wanted = batch.tokens[:, places]

    def at(number: int, hidden: torch.Tensor, offset: int) -> torch.Tensor:
        """Of the letter at one blank, with `hidden` masked."""
        single = model.system.fill(batch, hidden).log_probs.view(len(texts), -1, vocabulary.size)
        return single[:, offset].gather(1, wanted[:, number, None])[:, 0].double()

    with torch.no_grad():
        found = {"product": sum(at(number, masked, number) for number in range(len(places)))}
        asked_again = masked.clone()
        found["chain rule"] = torch.zeros(len(texts), dtype=torch.float64)
        for number, place in enumerate(places):
            found["chain rule"] += at(number, asked_again, 0)
            asked_again[:, place] = False
        if isinstance(model.system, JointFill):
            joint = model.system.joint_fill(batch, masked)
            found["joint"] = joint.log_prob(wanted.flatten()).double()
    return found


def measure(model: Any) -> dict[str, Any]:
    """KL by method, for the lengths of 中国 and 北京 and over all lengths."""
    import torch

    of_notes, total, mass = {}, dict[str, float](), 0.0
    for lengths, fillings in questions().items():
        probabilities = torch.tensor([p for _, p in fillings], dtype=torch.float64)
        here = float(probabilities.sum())
        truth = probabilities / here
        found = log_probs(model, [text for text, _ in fillings], lengths)
        each = {way: float((truth * (truth.log() - q)).sum()) for way, q in found.items()}
        for way, value in each.items():
            total[way] = total.get(way, 0.0) + here * value
        mass += here
        if lengths == (2, 2):
            of_notes = each
    pair = log_probs(model, list(NOTES), (2, 2))
    ratios = {way: float(values[0] - values[1]) for way, values in pair.items()}
    return {
        "kl_two_and_two": of_notes,
        "kl_all_lengths": {way: value / mass for way, value in total.items()},
        "log_ratio_of_notes": ratios,
    }


def bound() -> dict[str, float]:
    """KL of the best product, that of the true marginals, and the true entropy."""
    independent, entropy, mass, found = 0.0, 0.0, 0.0, dict[str, float]()
    for lengths, fillings in questions().items():
        here = sum(p for _, p in fillings)
        marginals: list[dict[str, float]] = [{} for _ in fillings[0][0]]
        for text, p in fillings:
            for place, letter in enumerate(text):
                marginals[place][letter] = marginals[place].get(letter, 0.0) + p / here
        kl = 0.0
        for text, p in fillings:
            product = sum(math.log(marginals[i][letter]) for i, letter in enumerate(text))
            kl += p / here * (math.log(p / here) - product)
            entropy -= p * math.log(p / here)
        independent += here * kl
        mass += here
        if lengths == (2, 2):
            found["best_product_kl_two_and_two"] = kl
    return found | {"best_product_kl": independent / mass, "entropy": entropy / mass}


def draw(record: dict[str, Any], path: Path) -> None:
    """Plot KL, one bar per model and method; two letters each, and all lengths."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    ways = ("product", "chain rule", "joint")
    names = [name for name in MODELS if name in record["models"]]
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.8))
    panels = (
        ("two letters each", "kl_two_and_two", "best_product_kl_two_and_two"),
        ("all lengths", "kl_all_lengths", "best_product_kl"),
    )
    for axis, (title, what, least) in zip(axes, panels, strict=True):
        for number, way in enumerate(ways):
            found = [record["models"][name][what].get(way) for name in names]
            bars = [(i + 0.27 * (number - 1), kl) for i, kl in enumerate(found) if kl is not None]
            places, heights = zip(*bars, strict=True)
            drawn = axis.bar(places, heights, width=0.25, label=way)
            axis.bar_label(drawn, fmt="%.1f", fontsize=7)
        best = record["bound"][least]
        axis.axhline(best, color="grey", linestyle=":", label="the best product")
        axis.set(title=title, xticks=range(len(names)), xticklabels=names)
    axes[0].set(ylabel="KL from the true joint, nats")
    axes[1].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=MODELS, action="append")
    parser.add_argument("--steps", type=int, default=3500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path, help="a record to plot instead of training")
    parser.add_argument("--figure", type=Path, default=Path("span-joint.svg"))
    options = parser.parse_args()
    if options.draw:
        draw(json.loads(options.draw.read_text(encoding="utf-8")), options.figure)
        return
    import torch

    torch.set_num_threads(1)
    for name in options.only or MODELS:
        model, training = train(name, options.steps, options.seed)
        found = {**training, "settings": MODELS[name][1], **measure(model)}
        print(name, json.dumps(found, ensure_ascii=False), flush=True)
        if options.out is None:
            continue
        # Read again just before it is written: another model may have been added meanwhile.
        record = {"models": {}}
        if options.out.exists():
            record = json.loads(options.out.read_text(encoding="utf-8"))
        record |= {"sentences": SENTENCES, "encoder": ENCODER, "bound": bound()}
        record["models"][name] = found
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
