"""Can candidates be thrown away by how many parts of their vectors mismatch (001)?

    python benchmarks/notes/screening.py --data DATA [--seeds 3]

001: with several parts per vector, "three mismatches and the vector can be dropped". An LSTM with a
hamming emission (eight parts; a mismatch is a sigmoid agreement below a half) and one with a
softmax (a mismatch is a negative inner product of a part) are trained on the words of multi30k.
Measured on held-out positions, for every number m of mismatches from which a candidate is dropped:
the share of the vocabulary that is left, and the probability mass (of the model) and true next
words that are left with it; beside them the mass of as many words, the most probable on average.
"""

from __future__ import annotations

from typing import Any

import torch
from claim_records import Record, measure_missing, parse_arguments, print_means, train_model
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.parts import prediction_mask
from lmlab.data.corpus import open_corpus
from lmlab.emissions.hamming import Hamming

PARTS, TEXTS, STEPS = 8, 150, 1500
EMISSIONS = ("hamming", "hamming-min", "softmax")
SETTINGS: Record = {
    "width": 64,
    "dropout": 0.0,
    "learning_rate": 5e-3,
    "schedule": "cosine",
    "warmup_steps": 100,
    "tokens_per_batch": 1024,
    "min_count": 10,
    "evaluate_every": 10**6,
}


def measure(data: str, emission: str, seed: int) -> Record:
    corpus = open_corpus(f"multi30k:{data}")
    model = train_model("lstm", corpus, SETTINGS | {"emission": emission}, seed=seed, steps=STEPS)
    vocabulary, system = model.system.vocabulary, model.system
    rows = [
        [vocabulary.start, *model.tokenizer.encode(example.text), vocabulary.end]
        for example in corpus.splits["test"].first(TEXTS)
    ]
    with torch.no_grad():
        view = system.objective.view(Batch.collate(rows, pad=vocabulary.pad))
        mask = prediction_mask(view)
        assert view.targets is not None
        hidden, targets = system.hidden(view).values[mask], view.targets[mask]
        log_probs = system.emission.log_probs(hidden)
        counts = mismatches(system.emission, hidden)
    probabilities = log_probs.exp()
    by_limit = {}
    for limit in range(1, PARTS + 1):
        kept = counts < limit
        size = max(int(kept.sum(1).float().mean()), 1)
        frequent = torch.zeros_like(kept[0])
        frequent[probabilities.mean(0).topk(size).indices] = True
        by_limit[str(limit)] = {
            "vocabulary left": float(kept.float().mean()),
            "mass left": float((probabilities * kept).sum(1).mean()),
            "true words left": float(kept.gather(1, targets[:, None]).float().mean()),
            "mass of as many frequent words": float((probabilities * frequent).sum(1).mean()),
        }
    return {
        "nats per token": -float(log_probs.gather(1, targets[:, None]).mean()),
        "vocabulary": vocabulary.size,
        "dropped from": by_limit,
    }


def mismatches(emission: Any, hidden: Tensor) -> Tensor:
    """(N, V) in how many parts a token disagrees with a hidden state."""
    parts = emission.parts if isinstance(emission, Hamming) else PARTS
    states = hidden.unflatten(-1, (parts, -1))
    tokens = emission.weight.unflatten(-1, (parts, -1))
    counts = torch.zeros(len(hidden), len(emission.weight), dtype=torch.int64)
    for part in range(parts):
        # σ(x) < ½ where x < 0.
        counts += (states[:, part] @ tokens[:, part].t()) < 0
    return counts


def main() -> None:
    options = parse_arguments(__doc__, "screening")
    torch.set_num_threads(1)
    configurations = [{"emission": emission} for emission in EMISSIONS]
    settings = SETTINGS | {"steps": STEPS, "texts": TEXTS, "parts": PARTS}
    records = measure_missing(
        options, settings, configurations, lambda **fields: measure(options.data, **fields)
    )
    print_means(records, ("emission",))


if __name__ == "__main__":
    main()
