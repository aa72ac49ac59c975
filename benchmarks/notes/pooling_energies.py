"""Which pooling and which energy of `ebm` is better (000)? Three by three on `capitals`.

    python benchmarks/notes/pooling_energies.py [--seeds 3]

Poolings: the energies of all positions (all), of the blanks alone (blanks), of all with a template
that does not attend to the blanks (stopped). Energies: inner product of state and embedding, a
linear map of the state, the squared norm of one. Every model has the same encoder, corruptions and
steps. Measured on held-out texts: how often a text has a lower energy than a one-letter corruption
outside the language; and how often a country's own capital has the lowest energy among eight of
the same length (chance is 1/8), over all countries.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from claim_records import Record, measure_missing, parse_arguments, print_means, train_model

sys.path.insert(0, str(Path(__file__).parents[1]))

from energies_correlate import SETTINGS, corruptions

from lmlab.data.countries import country_table
from lmlab.data.languages import capitals

POOLINGS = ("all", "blanks", "stopped")
ENERGIES = ("inner-product", "linear", "squared")
SENTENCES, EPOCHS, PAIRS, CANDIDATES = 4000, 20, 300, 8


def measure(pooling: str, energy: str, seed: int) -> Record:
    corpus = capitals.corpus(sentences=SENTENCES, seed=seed)
    settings = SETTINGS | {"pooling": pooling, "energy": energy}
    model = train_model("ebm", corpus, settings, seed=seed, epochs=EPOCHS)
    texts = [example.text for example in corpus.splits["test"]][:PAIRS]
    pairs = corruptions(texts, capitals.truth().probabilities, seed)
    true, corrupted = (totals(model, list(side)) for side in zip(*pairs, strict=True))
    return {
        "texts above corruptions": float(np.mean(true > corrupted)),
        "right capital first": right_capital(model, seed),
    }


def totals(model: Any, texts: list[str]) -> np.ndarray[Any, Any]:
    return np.array([score.total for score in model.score(texts, method="energy")])


def right_capital(model: Any, seed: int) -> float:
    """How often a country's own capital has the lowest energy of eight of the same length."""
    generator = np.random.default_rng(seed)
    countries = list(country_table())
    right = []
    for country in countries:
        others = [
            other.capital_zh
            for other in countries
            if len(other.capital_zh) == len(country.capital_zh) and other is not country
        ]
        if len(others) < CANDIDATES - 1:
            continue
        chosen = generator.choice(others, CANDIDATES - 1, replace=False)
        candidates = [country.capital_zh, *map(str, chosen)]
        scores = totals(model, [f"{country.country_zh}的首都是{c}" for c in candidates])
        right.append(int(scores.argmax()) == 0)
    return float(np.mean(right))


def main() -> None:
    options = parse_arguments(__doc__, "pooling-energies")
    torch.set_num_threads(1)
    configurations = [{"pooling": p, "energy": e} for p, e in product(POOLINGS, ENERGIES)]
    settings = SETTINGS | {"sentences": SENTENCES, "epochs": EPOCHS, "candidates": CANDIDATES}
    print_means(measure_missing(options, settings, configurations, measure), ("pooling", "energy"))


if __name__ == "__main__":
    main()
