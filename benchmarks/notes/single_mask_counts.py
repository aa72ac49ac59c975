"""Does a masked LM with single masks learn the normalised counts (000)?

    python benchmarks/notes/single_mask_counts.py [--seeds 3]

A small BERT is trained on a hundred sentences of `surnames`, so that counts differ from the
language's probabilities, with one mask per sentence (rate 0.01; one at least) or with BERT's 15 %
(several in some sentences). At the last character, which several complete, its distribution at a
single mask is compared with the counts of the training sentences that agree everywhere else, and
with the language's own probabilities: total variation, weighted by the counts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import torch
from claim_records import Record, measure_missing, parse_arguments, print_means, train_model

from lmlab.core.batch import Batch
from lmlab.data.languages import surnames

SENTENCES = 100
STEPS = (300, 1500)
RATES = (0.01, 0.15)
SETTINGS: Record = {
    "width": 64,
    "layers": 2,
    "heads": 4,
    "length": 32,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "pairs": "none",
    "segments": 0,
    "masking": "dynamic",
    "learning_rate": 1e-3,
    "warmup_steps": 50,
    "tokens_per_batch": 1024,
    # The weights of the last step count: a held-out loss would choose the language over the counts.
    "evaluate_every": 10**6,
}
Context = tuple[str, int]
"""A sentence with one position masked: the sentence with a gap there, and the position."""


def contexts(probabilities: dict[str, float]) -> dict[Context, dict[str, float]]:
    """By context, the weight of each character that completes it."""
    tables: dict[Context, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for text, weight in probabilities.items():
        for position, character in enumerate(text):
            tables[text[:position] + "_" + text[position + 1 :], position][character] += weight
    return tables


def measure(rate: float, steps: int, seed: int) -> Record:
    corpus = surnames.corpus(seed=seed, sentences=SENTENCES)
    counts = Counter(example.text for example in corpus.splits["train"])
    model = train_model("bert", corpus, SETTINGS | {"rate": rate}, seed=seed, steps=steps)
    counted = contexts(dict(counts))
    true = contexts(dict(surnames.truth().probabilities))
    # Only positions that several characters complete can tell counts from the language.
    open_contexts = [context for context, table in true.items() if len(table) > 1]
    distances = {"to the counts": 0.0, "to the language": 0.0, "counts to the language": 0.0}
    mass = 0.0
    for context in open_contexts:
        total = sum(counted[context].values()) if context in counted else 0.0
        if not total:
            continue
        model_table = distribution(model, context)
        of_counts = {c: n / total for c, n in counted[context].items()}
        true_total = sum(true[context].values())
        of_truth = {c: p / true_total for c, p in true[context].items()}
        mass += total
        for name, (first, second) in {
            "to the counts": (model_table, of_counts),
            "to the language": (model_table, of_truth),
            "counts to the language": (of_counts, of_truth),
        }.items():
            distances[name] += total * total_variation(first, second)
    return {name: value / mass for name, value in distances.items()}


@torch.no_grad()
def distribution(model: Any, context: Context) -> dict[str, float]:
    """The model's probabilities at the gap."""
    text, position = context
    vocabulary = model.system.vocabulary
    ids = [
        vocabulary.start,
        *model.tokenizer.encode(text.replace("_", text[position - 1])),
        vocabulary.end,
    ]
    batch = Batch.collate([ids], pad=vocabulary.pad)
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[0, position + 1] = True
    probabilities = model.system.fill(batch, masked).log_probs.exp().flatten()
    characters = sorted(set("".join(surnames.truth().probabilities)))
    return {c: float(probabilities[model.tokenizer.encode(c)[0]]) for c in characters}


def total_variation(first: dict[str, float], second: dict[str, float]) -> float:
    return sum(abs(first.get(c, 0.0) - second.get(c, 0.0)) for c in {*first, *second}) / 2


def main() -> None:
    options = parse_arguments(__doc__, "single-mask-counts")
    torch.set_num_threads(1)
    configurations = [{"rate": rate, "steps": steps} for rate in RATES for steps in STEPS]
    settings = SETTINGS | {"sentences": SENTENCES}
    print_means(measure_missing(options, settings, configurations, measure), ("rate", "steps"))


if __name__ == "__main__":
    main()
