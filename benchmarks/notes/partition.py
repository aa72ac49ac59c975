"""What a partition of the vocabulary into K classes leaves to chance: H(word | class) in nats.

    python benchmarks/notes/partition.py --data DATA [--states 400]
        [--out benchmarks/results/notes-partition.json]

The question behind it: how much must a mixture of K states, each with one distribution of words,
leave to chance where its input says which state it is? Classes that share no word are one such
mixture, so it need leave no more than H(word | class) = H(word) - H(class).

Counts are of the predicted tokens of multi30k-l20, ends included. The partition is made on the
training split; on held-out text the figure is the cross-entropy of the training split's shares.

- balanced: the most frequent word first, each into the class that has the least so far
- head and rest: the K - 1 most frequent words by themselves, all the others in one class
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
        found = np.bincount(np.asarray(dataset.stream, dtype=np.int64), minlength=size)
        found[tokenizer.vocabulary.bos] = 0  # context of the first token, never predicted
        assert found.sum() == dataset.total_tokens
        counts[name] = found
    return counts, size


def balanced(counts: NDArray[np.int64], states: int) -> NDArray[np.int64]:
    """(V,) the class of each word: the most frequent first, into the lightest class."""
    classes = np.zeros(len(counts), dtype=np.int64)
    lightest = [(0, number) for number in range(states)]
    for word in np.argsort(-counts, kind="stable"):
        mass, number = heapq.heappop(lightest)
        classes[word] = number
        # A word that was never seen weighs a little, so that such words are spread as well.
        heapq.heappush(lightest, (mass + max(int(counts[word]), 1), number))
    return classes


def head_and_rest(counts: NDArray[np.int64], states: int) -> NDArray[np.int64]:
    """(V,) the most frequent words by themselves, the last class for all others."""
    ranks = np.empty(len(counts), dtype=np.int64)
    ranks[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    return np.minimum(ranks, states - 1)


def within(
    classes: NDArray[np.int64], fitted: NDArray[np.int64], measured: NDArray[np.int64]
) -> float:
    """-Σ_w p(w) log q(w | class of w), q by `fitted` and p by `measured`; nats per token.

    Words that `fitted` has not seen count as once seen; on the text it was fitted on this changes
    nothing, and H(word | class) is exact.
    """
    same = fitted is measured
    weights = fitted.astype(float) if same else np.maximum(fitted, 1).astype(float)
    masses = np.bincount(classes, weights=weights)
    seen = measured > 0
    shares = weights[seen] / masses[classes[seen]]
    return float(-(measured[seen] * np.log(shares)).sum() / measured.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--states", type=int, default=400)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    counts, size = token_counts(options.data)
    train, test = counts["train"], counts["test"]
    everything = np.zeros(size, dtype=np.int64)
    partitions = {"balanced": balanced, "head and rest": head_and_rest, "one class": None}
    rows: dict[str, Any] = {}
    for name, make in partitions.items():
        classes = everything if make is None else make(train, options.states)
        rows[name] = {
            "train": round(within(classes, train, train), 4),
            "held out": round(within(classes, train, test), 4),
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
