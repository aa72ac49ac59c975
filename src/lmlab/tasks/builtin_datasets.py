"""Built-in task datasets from WordNet and capitals: classify, pair, generate, tag, span."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from lmlab.data.countries import Country, country_table
from lmlab.data.wordnet import Synset, load_wordnet
from lmlab.data.wordnet.glosses import split_by_hash, tokenize_gloss
from lmlab.data.wordnet.synsets import PARTS_OF_SPEECH

Row = dict[str, Any]
DATASET_SIZES = {"train": 8000, "validation": 1000, "test": 1000}
"""Maximum rows of each split: minutes of training, about ±1 % accuracy."""


@cache
def load_builtin_rows(name: str) -> tuple[str, dict[str, list[Row]]]:
    """The task of a built-in set, and its rows by split."""
    task, make = BUILTIN_DATASETS[name]
    return task, make()


def gloss_part_of_speech() -> dict[str, list[Row]]:
    """classify: the part of speech (noun, verb, adjective, adverb) that a gloss defines."""
    return _by_synset(
        lambda synset, _: {
            "text": tokenize_gloss(synset.definition),
            "label": PARTS_OF_SPEECH[synset.part_of_speech],
        }
    )


def gloss_hypernym() -> dict[str, list[Row]]:
    """pair: does the second gloss define a hypernym of what the first defines, or something else?

    Half are true; the others get the hypernym of another synset of the same part of speech, so that
    the second text alone is uninformative.
    """
    wordnet = load_wordnet()

    def row(synset: Synset, generator: np.random.Generator) -> Row | None:
        hypernyms = synset.related("hypernym")
        if not hypernyms:
            return None
        true = bool(generator.random() < 0.5)
        hypernym = hypernyms[0]
        while not true and hypernym in hypernyms:
            names = by_part[synset.part_of_speech]
            candidates = wordnet[names[int(generator.integers(len(names)))]].related("hypernym")
            hypernym = candidates[0] if candidates else hypernym
        return {
            "text": tokenize_gloss(synset.definition),
            "other": tokenize_gloss(wordnet[hypernym].definition),
            "label": "hypernym" if true else "other",
        }

    by_part = {part: [name for name in wordnet if name[-1] == part] for part in PARTS_OF_SPEECH}
    return _by_synset(row)


def gloss_word() -> dict[str, list[Row]]:
    """generate: the word that a gloss defines, the first of its synset; single words only."""

    def row(synset: Synset, _: np.random.Generator) -> Row | None:
        lemma = synset.lemmas[0].lower()
        if " " in lemma or "-" in lemma:
            return None
        return {"source": tokenize_gloss(synset.definition), "target": lemma}

    return _by_synset(row)


def capitals_mentions() -> dict[str, list[Row]]:
    """tag: the countries and capitals in a sentence."""

    def rows(countries: list[Country], generator: np.random.Generator) -> Iterator[Row]:
        templates = (
            ("the capital of", "COUNTRY", "is", "CAPITAL"),
            ("CAPITAL", "is the capital of", "COUNTRY"),
            ("COUNTRY", "has", "CAPITAL", "as its capital"),
            ("COUNTRY", "'s capital is", "CAPITAL"),
        )
        for country in countries:
            for template in templates:
                yield _tagged(template, country)

    return _by_country(rows)


def capitals_span() -> dict[str, list[Row]]:
    """span: the capital of the country in the question, in a text about two of them."""

    def rows(countries: list[Country], generator: np.random.Generator) -> Iterator[Row]:
        for first, second in pairwise([*countries, countries[0]]):
            target = first if generator.random() < 0.5 else second
            sentences = [
                f"the capital of {first.country_en} is {first.capital_en}",
                f"{second.capital_en} is the capital of {second.country_en}",
            ]
            text = " and ".join(sentences if generator.random() < 0.5 else sentences[::-1])
            question = f"the capital of {target.country_en}"
            yield {"text": text, "question": question, "answer": target.capital_en}

    return _by_country(rows, rounds=8)


def capitals_long() -> dict[str, list[Row]]:
    """span: the same in a text about thirty, longer than a small window; with `relevant`.

    In every text each country gets a random capital, so that only the text has the answer. All
    splits share the countries: this tests retrieval of a sentence, not unseen names.
    """
    generator = np.random.default_rng(0)
    countries = country_table()

    def row() -> Row:
        sampled = [countries[index] for index in generator.permutation(len(countries))[:30]]
        cities = [sampled[index].capital_en for index in generator.permutation(len(sampled))]
        sentences = [
            f"the capital of {country.country_en} is {city} ."
            for country, city in zip(sampled, cities, strict=True)
        ]
        target = int(generator.integers(len(sentences)))
        low = sum(len(sentence) + 1 for sentence in sentences[:target])
        return {
            "text": " ".join(sentences),
            "question": f"the capital of {sampled[target].country_en}",
            "answer": cities[target],
            "start": low + len(sentences[target]) - len(f"{cities[target]} ."),
            "relevant": [[low, low + len(sentences[target])]],
        }

    return {split: [row() for _ in range(size // 4)] for split, size in DATASET_SIZES.items()}


BUILTIN_DATASETS: dict[str, tuple[str, Callable[[], dict[str, list[Row]]]]] = {
    "gloss-part-of-speech": ("classify", gloss_part_of_speech),
    "gloss-hypernym": ("pair", gloss_hypernym),
    "capitals-mentions": ("tag", capitals_mentions),
    "capitals-span": ("span", capitals_span),
    "capitals-long": ("span", capitals_long),
    "gloss-word": ("generate", gloss_word),
}
"""The task of each set, and its constructor."""


def _by_synset(make: Callable[[Synset, np.random.Generator], Row | None]) -> dict[str, list[Row]]:
    """Rows of synsets in a random order, each once, in the splits of WordNet's glosses.

    So the test rows are not in the training data of a run trained on `wordnet`.
    """
    wordnet, generator = load_wordnet(), np.random.default_rng(0)
    names = list(wordnet)
    splits: dict[str, list[Row]] = {split: [] for split in DATASET_SIZES}
    seen: set[tuple[str, ...]] = set()
    for index in generator.permutation(len(names)):
        split = split_by_hash(names[index])
        if len(splits[split]) == DATASET_SIZES[split]:
            continue
        row = make(wordnet[names[index]], generator)
        # Synsets may give equal rows: only the first is retained.
        if row is not None and (key := tuple(row.values())) not in seen:
            seen.add(key)
            splits[split].append(row)
    return splits


def _by_country(
    make: Callable[[list[Country], np.random.Generator], Iterator[Row]], *, rounds: int = 1
) -> dict[str, list[Row]]:
    """Rows about countries, a fifth of them in validation only and a fifth in test only.

    Test countries are unseen in training: they must be recognised by their context.
    """
    generator = np.random.default_rng(0)
    parts = {"train": (0, 1, 2), "validation": (3,), "test": (4,)}
    splits: dict[str, list[Row]] = {}
    for split, remainders in parts.items():
        countries = [c for index, c in enumerate(country_table()) if index % 5 in remainders]
        rows: list[Row] = []
        for _ in range(rounds):
            order = [countries[index] for index in generator.permutation(len(countries))]
            rows += make(order, generator)
        splits[split] = rows
    return splits


def _tagged(template: tuple[str, ...], country: Country) -> Row:
    words: list[str] = []
    tags: list[str] = []
    names = {"COUNTRY": country.country_en, "CAPITAL": country.capital_en}
    for part in template:
        tokens = names.get(part, part).split(" ")
        words += tokens
        kind = part.lower() if part in names else ""
        tags += [f"{'B' if i == 0 else 'I'}-{kind}" if kind else "O" for i in range(len(tokens))]
    return {"words": words, "tags": tags}
