"""Conditional entropy H(word | class) of a partition of the vocabulary into K classes, in nats.

    python benchmarks/notes/partition.py --data DATA [--states 400]
        [--out benchmarks/results/notes-partition.json]

The question: what is the lowest entropy that a mixture of K states, each with one distribution over
words, can reach when its input determines the state? Disjoint classes of words are one such
mixture, so the lowest entropy is at most H(word | class) = H(word) - H(class).

Counts are of the predicted tokens of multi30k-l20, end tokens included. The partition is made on
the training split; the held-out figure is the cross-entropy under the training split's frequencies.

- balanced: words by descending frequency, each put into the class with the lowest count so far
- head and rest: one class for each of the K - 1 most frequent words, one class for all others
"""

from __future__ import annotations

import argparse
import heapq
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmlab.data.corpus import open_corpus
from lmlab.data.dataset import TokenDataset
from lmlab.data.tokenizers import tokenizer_for

PROTOCOL = "multi30k-l20"


def token_counts(data: Path) -> tuple[dict[str, NDArray[np.int64]], int]:
    """How often each token is predicted in each split, and the size of the vocabulary."""
    corpus = open_corpus(f"{PROTOCOL}:{data}")
    tokenizer = tokenizer_for(corpus)
    size = tokenizer.vocabulary.size
    counts = {}
    for name, split in corpus.splits.items():
        dataset = TokenDataset.build(split, tokenizer, corpus.layout, progress=False)
        split_counts = np.bincount(np.asarray(dataset.stream, dtype=np.int64), minlength=size)
        split_counts[tokenizer.vocabulary.bos] = 0  # context of the first token, never predicted
        assert split_counts.sum() == dataset.total_tokens
        counts[name] = split_counts
    return counts, size


def balanced(counts: NDArray[np.int64], states: int) -> NDArray[np.int64]:
    """(V,) class of each word: by descending frequency, each into the class of lowest count."""
    classes = np.zeros(len(counts), dtype=np.int64)
    lightest = [(0, number) for number in range(states)]
    for word in np.argsort(-counts, kind="stable"):
        mass, number = heapq.heappop(lightest)
        classes[word] = number
        # An unseen word counts as one, so that unseen words are spread over the classes too.
        heapq.heappush(lightest, (mass + max(int(counts[word]), 1), number))
    return classes


def head_and_rest(counts: NDArray[np.int64], states: int) -> NDArray[np.int64]:
    """(V,) class of each word: the most frequent words one each, the last class for all others."""
    ranks = np.empty(len(counts), dtype=np.int64)
    ranks[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    return np.minimum(ranks, states - 1)


def class_conditional_entropy(
    classes: NDArray[np.int64], fitted: NDArray[np.int64], measured: NDArray[np.int64]
) -> float:
    """-Σ_w p(w) log q(w | class of w), q by `fitted` and p by `measured`; nats per token.

    Words with no count in `fitted` count as one. Where `measured` is `fitted`, counts are unchanged
    and the result is exactly H(word | class).
    """
    same = fitted is measured
    weights = fitted.astype(float) if same else np.maximum(fitted, 1).astype(float)
    masses = np.bincount(classes, weights=weights)
    seen = measured > 0
    shares = weights[seen] / masses[classes[seen]]
    return float(-(measured[seen] * np.log(shares)).sum() / measured.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the corpora")
    parser.add_argument("--states", type=int, default=400, help="number of classes K")
    parser.add_argument("--out", type=Path, help="JSON record to write")
    options = parser.parse_args()
    counts, size = token_counts(options.data)
    train, test = counts["train"], counts["test"]
    one_class = np.zeros(size, dtype=np.int64)
    partitions = {"balanced": balanced, "head and rest": head_and_rest, "one class": None}
    rows: dict[str, Any] = {}
    for name, partition in partitions.items():
        classes = one_class if partition is None else partition(train, options.states)
        rows[name] = {
            "train": round(class_conditional_entropy(classes, train, train), 4),
            "held out": round(class_conditional_entropy(classes, train, test), 4),
        }
    record = {
        "command": f"python benchmarks/notes/partition.py --data DATA --states {options.states}",
        "protocol": PROTOCOL,
        "vocabulary": size,
        "states": options.states,
        "nats per token within a class": rows,
    }
    print(json.dumps(record, indent=1))
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
