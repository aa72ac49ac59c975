"""P(Y | X) in "X is a Y" on WordNet: how much of hypernymy do language models capture?

    python benchmarks/connective.py [--systems ngram,window-mixture,lstm] [--epochs 4] [--out FILE]

Every noun of WordNet and each of its hypernyms (or instance hypernyms) make a sentence, "guide dog
is a dog". One in twenty X is held out with all its sentences. Each system is trained on the
sentences as text with the same tokenizer (BPE, 8,000) and evaluated by

    log P(Y | "X is a") of held-out pairs, including the end token,

against two count-based baselines that know nothing or little of X: the frequency of Y, and its
frequency after the same last word of X. An unseen Y gets 1/V of one count there, V the number of
distinct Y seen, which favours these baselines, since unseen Y are unlimited. The difference to the
first is the information that X gives about Y, in nats.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from finishing import finished

import lmlab
from lmlab.knowledge.load_knowledge import load_knowledge

KINDS = ("hypernym", "instance hypernym")
HELD_OUT_EVERY = 20
SETTINGS: dict[str, dict[str, Any]] = {
    "ngram": {},
    "window-mixture": {"width": 128},
    "lstm": {"width": 192, "dropout": 0.2},
}


def pairs() -> list[tuple[str, str]]:
    """Unique pairs of X and Y, named by the first lemma of their synsets, in WordNet's order."""
    knowledge = load_knowledge("wordnet")
    relations = {knowledge.relation(kind) for kind in KINDS}
    unique: dict[tuple[str, str], None] = {}
    for fact in knowledge.facts:
        subject, target = knowledge.entities[fact.subject], knowledge.entities[fact.object]
        if fact.relation in relations and subject.name.endswith("-n"):
            unique[subject.title, target.title] = None
    return list(unique)


def article(word: str) -> str:
    return "an" if word[0].lower() in "aeiou" else "a"


def split(all_pairs: list[tuple[str, str]]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Training and test split, disjoint in X."""
    names = sorted({x for x, _ in all_pairs})
    held_out = set(names[::HELD_OUT_EVERY])
    train = [pair for pair in all_pairs if pair[0] not in held_out]
    return train, [pair for pair in all_pairs if pair[0] in held_out]


class CountBaselines:
    """P(Y) and P(Y | last word of X) by counting, smoothed by 1/V and by P(Y)."""

    def __init__(self, train: list[tuple[str, str]]) -> None:
        self.counts = Counter(y for _, y in train)
        self.counts_by_word: dict[str, Counter[str]] = defaultdict(Counter)
        for x, y in train:
            self.counts_by_word[x.split()[-1]][y] += 1

    def prob(self, y: str) -> float:
        """P(Y) = (c(Y) + 1/V) / (n + 1), with V distinct Y in training."""
        return (self.counts[y] + 1 / len(self.counts)) / (self.counts.total() + 1)

    def prob_given_last_word(self, x: str, y: str) -> float:
        """P(Y | w) = (c(w, Y) + P(Y)) / (c(w) + 1), with w the last word of X."""
        counts = self.counts_by_word[x.split()[-1]]
        return (counts[y] + self.prob(y)) / (counts.total() + 1)


def measure(
    name: str, folder: Path, corpus: Path, test: list[tuple[str, str]], epochs: int
) -> dict[str, Any]:
    """Mean log P(Y | X is a) of a system trained on the sentences."""
    budget: dict[str, Any] = {} if name == "ngram" else {"epochs": epochs}
    start = time.perf_counter()
    run = finished(
        lmlab.train(
            name,
            data=corpus,
            out=folder / name,
            tokenizer="bpe",
            settings={"vocabulary_size": 8000, **SETTINGS.get(name, {})},
            quiet=True,
            **budget,
        )
    )
    seconds = time.perf_counter() - start
    model = lmlab.load(run.path)
    queries = [(f"{x} is {article(y)}", f" {y}") for x, y in test]
    scores = [score.total for score in model.score_given(queries, end=True)]
    return {"nats": -sum(scores) / len(scores), "seconds": round(seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--systems", default=",".join(SETTINGS), help="comma-separated system names"
    )
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    train, test = split(pairs())
    baselines = CountBaselines(train)
    record: dict[str, Any] = {
        "command": f"python benchmarks/connective.py --epochs {options.epochs}",
        "pairs": {"train": len(train), "test": len(test)},
        "Y never seen": sum(y not in baselines.counts for _, y in test) / len(test),
        "systems": {
            "counts of Y": {"nats": -_mean([math.log(baselines.prob(y)) for _, y in test])},
            "counts of Y by X's last word": {
                "nats": -_mean([math.log(baselines.prob_given_last_word(x, y)) for x, y in test])
            },
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "connective.txt"
        lines = "".join(f"{x} is {article(y)} {y}\n" for x, y in train)
        corpus.write_text(lines, encoding="utf-8")
        for name in options.systems.split(","):
            metrics = measure(name, Path(folder), corpus, test, options.epochs)
            record["systems"][name] = metrics
            print(name, metrics, flush=True)
    print(json.dumps(record, indent=1))
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
