"""Word vectors against gensim's: words per second, similarity and analogies; and vector collapse.

    python benchmarks/words.py [--parts speed,quality,collapse] --out benchmarks/results/words.json
    python benchmarks/words.py --draw benchmarks/results/words.json --figure words-collapse.svg

Text: the glosses of WordNet, words with five or more occurrences. Both sides: width 100, window 5,
five negatives by counts^0.75, subsampling of frequent words at 1e-3, two threads.

speed: effective words (after subsampling) per second over one pass of the first 30,000 lines, the
sides alternating; gensim once from lists of words and once from a file.

quality: five passes over the whole split, the same learning rates; Spearman's correlation with the
path similarity of nouns in WordNet, and the accuracy of plural analogies (year : years = day : ?),
a word against all others; means and spreads over seeds.

collapse: the mean cosine between the vectors of the thousand most frequent words after each pass,
with 0, 1 and 5 negatives.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import gensim
import numba
import numpy as np
import torch
from measuring import ratio

from lmlab.core.registry import system_module
from lmlab.data.corpus import Corpus, open_corpus
from lmlab.data.dataset import TokenDataset
from lmlab.data.tokenizers import tokenizer_for
from lmlab.data.wordnet.noun_similarity import similar_nouns
from lmlab.models.word2vec import Word2Vec
from lmlab.scoring.word_vectors import WordVectors, word_vectors
from lmlab.training.run_folder import load_run
from lmlab.training.train import train
from lmlab.training.word2vec_fitter import TextChunks

THREADS = 2
RATES = {"skipgram": 0.025, "cbow": 0.05}
"""word2vec's own, on both sides."""
EPOCHS = 5
SPEED_LINES = 30_000
STRETCH = 8192
PLURALS = 40
"""Nouns; each two make an analogy."""


def training_lines(corpus: Corpus, most: int | None = None) -> list[list[str]]:
    return [each.text.split() for each in islice(corpus.splits["train"], most)]


def gensim_model(name: str, **settings: Any) -> Word2Vec:
    return Word2Vec(
        vector_size=100,
        window=5,
        negative=5,
        ns_exponent=0.75,
        sample=1e-3,
        min_count=5,
        workers=THREADS,
        sg=int(name == "skipgram"),
        alpha=RATES[name],
        min_alpha=RATES[name] * 1e-4,
        **settings,
    )


def built(name: str, dataset: TokenDataset, *, seed: int = 0, **settings: Any) -> Word2Vec:
    """An untrained system, set up with the data."""
    module = system_module(name)
    config = replace(module.SIZES["small"], threads=THREADS, **settings)
    torch.manual_seed(seed)
    system: Word2Vec = module.build(config, dataset.vocabulary)
    system.setup_data(dataset.stream, np.array([0, len(dataset.stream)]))
    return system


def one_pass(stretches: TextChunks, epoch: int, rate: float) -> None:
    """One training epoch, without reports."""
    count = stretches.per_epoch()
    with ThreadPoolExecutor(THREADS) as pool:
        futures = [
            pool.submit(stretches.step, epoch * count + at, stretches.chunk_index(epoch, at), rate)
            for at in range(count)
        ]
        for each in futures:
            each.result()


def first_lines(corpus: Corpus, count: int) -> TokenDataset:
    tokenizer = tokenizer_for(corpus, min_count=5)
    whole = TokenDataset.build(corpus.splits["train"], tokenizer, corpus.layout, progress=False)
    cut = int(whole.lengths[:count].sum())

    class First:
        vocabulary = whole.vocabulary
        stream = whole.stream[:cut]

    return First()  # type: ignore[return-value]


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Seconds of a call, and its result."""
    began = time.perf_counter()
    found = work(*arguments)
    return time.perf_counter() - began, found


def speed(corpus: Corpus, name: str, rounds: int) -> dict[str, Any]:
    """Effective words per second of both sides, in alternation."""
    dataset = first_lines(corpus, SPEED_LINES)
    system = built(name, dataset)
    law = system.objective.unigram
    words = np.bincount(np.asarray(dataset.stream), minlength=dataset.vocabulary.size)
    effective = float((law.keep_probabilities().numpy() * words).sum())
    stretches = TextChunks(system, dataset.stream, size=STRETCH, seed=0)
    one_pass(stretches, 0, RATES[name])  # compiled, and the caches warm

    lines = training_lines(corpus, SPEED_LINES)
    peer = gensim_model(name)
    peer.build_vocab(lines)
    rates: dict[str, list[float]] = {"ours": [], "gensim lists": [], "gensim file": []}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "text.txt"
        file.write_text("\n".join(map(" ".join, lines)) + "\n", encoding="utf-8")
        total = sum(map(len, lines))
        ways: dict[str, Callable[[], Any]] = {
            "gensim lists": lambda: peer.train(lines, total_examples=len(lines), epochs=1),
            "gensim file": lambda: peer.train(
                corpus_file=str(file), total_examples=len(lines), total_words=total, epochs=1
            ),
        }
        for number in range(rounds):
            taken, _ = timed(one_pass, stretches, number + 1, RATES[name])
            rates["ours"].append(effective / taken)
            for way, work in ways.items():
                taken, (trained, _) = timed(work)
                rates[way].append(trained / taken)
    return {
        "effective share": effective / sum(map(len, lines)),
        "rates": rates,
        "against lists": ratio(rates["ours"], rates["gensim lists"]),
        "against a file": ratio(rates["ours"], rates["gensim file"]),
    }


def plural_questions(vectors: WordVectors, counts: dict[str, int]) -> list[tuple[str, ...]]:
    """Four words each: a noun and its plural, and another noun with its own."""
    nouns = {word for pair in similar_nouns() for word in (pair.first, pair.second)}
    pairs = [word for word in nouns if word in vectors.index and f"{word}s" in vectors.index]
    pairs.sort(key=lambda word: (-min(counts[word], counts[f"{word}s"]), word))
    return [(a, f"{a}s", b, f"{b}s") for a, b in permutations(pairs[:PLURALS], 2)]


def judged(vectors: WordVectors, counts: dict[str, int]) -> dict[str, float]:
    questions = plural_questions(vectors, counts)
    answers = vectors.analogies([(a, b, c) for a, b, c, _ in questions])
    right = [found[0].word == d for found, (*_, d) in zip(answers, questions, strict=True)]
    agreement = vectors.similarity_correlation(similar_nouns())
    return {
        "similarity": agreement.spearman,
        "pairs": agreement.pairs,
        "analogies": statistics.mean(right),
        "questions": len(right),
    }


def quality(corpus: Corpus, name: str, seed: int) -> dict[str, Any]:
    """Metrics of both sides' vectors after five passes, and training seconds."""
    lines = training_lines(corpus)
    peer = gensim_model(name, seed=seed + 1)
    peer.build_vocab(lines)
    took, _ = timed(lambda: peer.train(lines, total_examples=len(lines), epochs=EPOCHS))
    counts = {word: peer.wv.get_vecattr(word, "count") for word in peer.wv.index_to_key}
    theirs = judged(WordVectors(peer.wv.index_to_key, peer.wv.vectors), counts)
    with tempfile.TemporaryDirectory() as folder:
        run = train(
            name,
            data=corpus,
            out=Path(folder) / "run",
            settings={"threads": THREADS, "learning_rate": RATES[name], "evaluate_every": 10**9},
            epochs=EPOCHS,
            seed=seed,
            quiet=True,
        )
        model = load_run(run.path)
        ours = judged(word_vectors(model.system, model.tokenizer), counts)
    return {
        "system": name,
        "seed": seed,
        "ours": ours | {"seconds with a validation": run.seconds},
        "gensim": theirs | {"seconds": took},
    }


def collapse(corpus: Corpus, name: str, negatives: int, seed: int, epochs: int) -> dict[str, Any]:
    """The mean cosine of two different words among the thousand most frequent, pass by pass."""
    dataset = first_lines(corpus, SPEED_LINES)
    system = built(name, dataset, seed=seed, negatives=negatives)
    law = system.objective.unigram
    frequent = law.counts.masked_fill(~law.is_word, 0).topk(1000).indices
    stretches = TextChunks(system, dataset.stream, size=STRETCH, seed=seed)
    cosines = []
    for epoch in range(epochs + 1):
        directions = torch.nn.functional.normalize(system.vectors()[frequent].detach(), dim=-1)
        total = directions.sum(0).square().sum().item()
        cosines.append((total - 1000) / (1000 * 999))
        if epoch < epochs:
            one_pass(stretches, epoch, RATES[name])
    return {"system": name, "negatives": negatives, "seed": seed, "mean cosine": cosines}


def draw(records: list[dict[str, Any]], path: Path) -> None:
    """Plot mean cosine by pass, one line per number of negatives, one panel per system."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    for axis, name in zip(axes, RATES, strict=True):
        for negatives in sorted({record["negatives"] for record in records}):
            rows = [
                record["mean cosine"]
                for record in records
                if record["system"] == name and record["negatives"] == negatives
            ]
            means = np.mean(rows, axis=0)
            label = "no negatives" if negatives == 0 else f"{negatives} negative(s)"
            axis.plot(range(len(means)), means, marker="o", label=label)
        axis.set(title=name, xlabel="passes over the text", ylim=(-0.05, 1.05))
    axes[0].set(ylabel="mean cosine of two words")
    axes[1].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over seeds of each score of each side."""
    found: dict[str, Any] = {}
    for name in RATES:
        chosen = [row for row in rows if row["system"] == name]
        if not chosen:
            continue
        for side in ("ours", "gensim"):
            for score in ("similarity", "analogies"):
                values = [row[side][score] for row in chosen]
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                found[f"{name} {side} {score}"] = [statistics.mean(values), spread]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parts", default="speed,quality,collapse")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10, help="passes of the collapse")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path, help="a record to plot instead of training")
    parser.add_argument("--figure", type=Path, default=Path("words-collapse.svg"))
    given = parser.parse_args()
    if given.draw:
        draw(json.loads(given.draw.read_text(encoding="utf-8"))["collapse"], given.figure)
        return
    corpus = open_corpus("wordnet")
    before = json.loads(given.out.read_text()) if given.out and given.out.exists() else {}
    record: dict[str, Any] = before | {
        "versions": {
            "gensim": gensim.__version__,
            "numba": numba.__version__,
            "python": platform.python_version(),
        },
        "cores": os.cpu_count(),
        "threads": THREADS,
    }

    began = time.perf_counter()

    def save(part: str) -> None:
        """Save a part with its command, since parts may come from several commands."""
        record.setdefault("made by", {})[part] = {
            "command": " ".join(["python benchmarks/words.py", *sys.argv[1:]]),
            "seconds since its start": time.perf_counter() - began,
            "load of the machine at its end": os.getloadavg()[0],
        }
        print(json.dumps(record, indent=1)[-600:], flush=True)
        if given.out is not None:
            given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    if "speed" in given.parts:
        record["speed"] = {name: speed(corpus, name, given.rounds) for name in RATES}
        save("speed")
    if "collapse" in given.parts:
        record["collapse"] = [
            collapse(corpus, name, negatives, seed, given.epochs)
            for name in RATES
            for negatives in (0, 1, 5)
            for seed in range(2)
        ]
        save("collapse")
    if "quality" in given.parts:
        record["quality"] = []
        for seed in range(given.seeds):
            for name in RATES:
                record["quality"].append(quality(corpus, name, seed))
                record["quality summary"] = summary(record["quality"])
                save("quality")


if __name__ == "__main__":
    main()
