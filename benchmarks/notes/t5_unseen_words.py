"""Can T5 predict words that are not in its training text (002)?

    python benchmarks/notes/t5_unseen_words.py --data DATA [--seeds 3]

A small T5 over letters is trained on the captions of multi30k. In captions of the test split a word
is blanked. Measured, for words that the training text has and for those it has not: the share of
blanks whose most probable filling is the word itself; and over all blanks the share of fillings
that the training text does not have, and how many of these are English words (WordNet's lemmas or
words of the held-out captions), so that "new" is told from "misspelt".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from claim_records import Record, measure_missing, parse_arguments, print_means, train_model

from lmlab.data.corpus import open_corpus

BLANKS = 150
STEPS = 6000
SETTINGS: Record = {
    "width": 96,
    "layers": 2,
    "heads": 4,
    "length": 240,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "warmup_steps": 200,
    "tokens_per_batch": 2048,
    "evaluate_every": 10**6,
}


def measure(data: str, seed: int) -> Record:
    corpus = open_corpus(f"multi30k:{data}")
    model = train_model("t5", corpus, SETTINGS, seed=seed, steps=STEPS, tokenizer="char")
    known = {word for e in corpus.splits["train"] for word in e.text.split()}
    held_out = [e.text.split() for e in corpus.splits["test"]]
    english = known | {word for words in held_out for word in words}
    english |= {word for e in open_corpus("wordnet").splits["train"] for word in e.text.split()}
    result: Record = {}
    fillings: list[str] = []
    for name, unseen in (("seen", False), ("unseen", True)):
        blanks = chosen_blanks(held_out, known, unseen, seed)
        filled = [fill(model, words, index) for words, index in blanks]
        right = [f == words[index] for f, (words, index) in zip(filled, blanks, strict=True)]
        result[name] = {"blanks": len(blanks), "right": float(np.mean(right))}
        fillings += filled
    new = [word for word in fillings if word not in known]
    words = [word for word in new if word in english]
    result |= {"new fillings": len(new) / len(fillings), "of which words": len(words)}
    return result | {"examples": sorted(set(new))[:20]}


def chosen_blanks(
    texts: Sequence[list[str]], known: set[str], unseen: bool, seed: int
) -> list[tuple[list[str], int]]:
    """A word of three letters or more in each of some texts."""
    generator = np.random.default_rng(seed)
    places = []
    for words in texts:
        fits = [
            i
            for i, w in enumerate(words)
            if w.isalpha() and len(w) > 2 and (w not in known) == unseen
        ]
        if fits:
            places.append((words, int(generator.choice(fits))))
    return list(islice(places, BLANKS))


def fill(model: Any, words: list[str], index: int) -> str:
    """The most probable filling of the blank."""
    text = " ".join([*words[:index], "<mask>", *words[index + 1 :]])
    (filled,) = model.fill([text], blanks=True)
    return str(filled.candidates[0].answers[0]).strip()


def main() -> None:
    options = parse_arguments(__doc__, "t5-unseen-words")
    torch.set_num_threads(1)
    settings = SETTINGS | {"steps": STEPS, "blanks": BLANKS}
    records = measure_missing(options, settings, [{}], lambda seed: measure(options.data, seed))
    print_means(records, ())


if __name__ == "__main__":
    main()
