"""Word analogies (002): is woman - man about queen - king?

    python benchmarks/notes/analogies.py [--seeds 3]

Skip-gram and CBOW on WordNet's glosses (with the settings of `words.py`, whose plurals are recorded
in `results/words.json`) and analogies of gender: a male word is to its female one as another is to
?, all words of the vocabulary being candidates but the three given. Measured: the share of right
answers, and the mean rank of the right one's cosine; and the mean cosine of the differences
female - male between pairs, beside that of differences of random words of the pairs.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import torch
from claim_records import Record, measure_missing, parse_arguments, print_means, train_model

from lmlab.data.corpus import open_corpus
from lmlab.scoring.word_vectors import WordVectors, word_vectors

PAIRS = (
    ("man", "woman"),
    ("king", "queen"),
    ("boy", "girl"),
    ("father", "mother"),
    ("son", "daughter"),
    ("brother", "sister"),
    ("husband", "wife"),
    ("male", "female"),
    ("his", "her"),
    ("he", "she"),
    ("god", "goddess"),
    ("actor", "actress"),
)
RATES = {"skipgram": 0.025, "cbow": 0.05}
EPOCHS = 5


def measure(system: str, seed: int) -> Record:
    settings = {"threads": 1, "learning_rate": RATES[system], "evaluate_every": 10**9}
    model = train_model(system, open_corpus("wordnet"), settings, seed=seed, epochs=EPOCHS)
    vectors = word_vectors(model.system, model.tokenizer)
    pairs = [p for p in PAIRS if all(word in vectors.index for word in p)]
    questions = [(a, b, c, d) for (a, b), (c, d) in permutations(pairs, 2)]
    ranks = [rank(vectors, *question) for question in questions]
    return {
        "right": float(np.mean([r == 1 for r in ranks])),
        "among five": float(np.mean([r <= 5 for r in ranks])),
        "median rank": float(np.median(ranks)),
        "questions": len(questions),
        "queen": float(rank(vectors, "man", "woman", "king", "queen")),
        **differences(vectors, pairs, seed),
    }


def rank(vectors: WordVectors, a: str, b: str, c: str, d: str) -> int:
    """The rank of d for b - a + c, the three given words excluded; 3CosAdd."""
    unit = vectors.unit_vectors
    i, j, k, answer = (vectors.index_of(word) for word in (a, b, c, d))
    cosines = unit @ (unit[j] - unit[i] + unit[k])
    cosines[[i, j, k]] = -np.inf
    return int((cosines > cosines[answer]).sum()) + 1


def differences(vectors: WordVectors, pairs: list[tuple[str, str]], seed: int) -> dict[str, float]:
    """Mean cosine between the differences of pairs, and of the same words paired at random."""
    unit = vectors.unit_vectors
    males, females = (np.array([vectors.index_of(p[side]) for p in pairs]) for side in (0, 1))
    shuffled = np.random.default_rng(seed).permutation(females)
    return {
        "cosine of differences": mean_cosine(unit[females] - unit[males]),
        "cosine of random differences": mean_cosine(unit[shuffled] - unit[males]),
    }


def mean_cosine(rows: Any) -> float:
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-9)
    cosines = unit @ unit.T
    return float(cosines[~np.eye(len(unit), dtype=bool)].mean())


def main() -> None:
    options = parse_arguments(__doc__, "analogies")
    torch.set_num_threads(1)
    settings = {"epochs": EPOCHS, "learning rates": RATES, "pairs": PAIRS}
    configurations = [{"system": system} for system in RATES]
    records = measure_missing(options, settings, configurations, measure)
    print_means(records, ("system",))


if __name__ == "__main__":
    main()
