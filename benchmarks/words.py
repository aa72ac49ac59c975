"""Word2vec against gensim's: words per second, similarity, analogies, and vector collapse.

    python benchmarks/words.py [--parts speed,quality,…] --out benchmarks/results/words.json
    python benchmarks/words.py --draw benchmarks/results/words.json --figure words-collapse.svg

Text: the glosses of WordNet, words with five or more occurrences. Both sides: width 100, window 5,
five negatives sampled by counts^0.75, subsampling of frequent words at 1e-3, two threads.

speed: effective words (after subsampling) per second over one epoch of the first 30,000 lines, the
sides alternating; gensim once from lists of words and once from a file.

quality: five epochs over the training split, the same learning rates; Spearman's correlation with
the path similarity of nouns in WordNet, and the accuracy of plural analogies (year : years =
day : ?) with all words as candidates; means and standard deviations over seeds.

collapse: the mean cosine between the vectors of the thousand most frequent words after each epoch,
with 0, 1 and 5 negatives.

limit: what a limit on the length of all vectors does: similarity, plural analogies, the mean cosine
of the thousand most frequent words and the share of words at the limit, by limit, after five epochs
of CBOW and skip-gram, also without negatives.
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
from collections import defaultdict
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
"""Learning rates: word2vec's defaults, on both sides."""
EPOCHS = 5
SPEED_LINES = 30_000
CHUNK_SIZE = 8192
PLURALS = 40
"""Number of nouns; each ordered pair makes an analogy."""


def training_lines(corpus: Corpus, limit: int | None = None) -> list[list[str]]:
    return [example.text.split() for example in islice(corpus.splits["train"], limit)]


def gensim_model(name: str, **settings: Any) -> Any:
    return gensim.models.Word2Vec(
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


def build_untrained(
    name: str, dataset: TokenDataset, *, seed: int = 0, **settings: Any
) -> Word2Vec:
    """An untrained system, set up with the data's counts."""
    module = system_module(name)
    config = replace(module.SIZES["small"], threads=THREADS, **settings)
    torch.manual_seed(seed)
    system: Word2Vec = module.build(config, dataset.vocabulary)
    system.setup_data(dataset.stream, np.array([0, len(dataset.stream)]))
    return system


def train_epoch(chunks: TextChunks, epoch: int, rate: float) -> None:
    """One training epoch, without reports."""
    count = chunks.per_epoch()
    with ThreadPoolExecutor(THREADS) as pool:
        futures = [
            pool.submit(chunks.step, epoch * count + index, chunks.chunk_index(epoch, index), rate)
            for index in range(count)
        ]
        for future in futures:
            future.result()


def first_lines(corpus: Corpus, count: int) -> TokenDataset:
    tokenizer = tokenizer_for(corpus, min_count=5)
    dataset = TokenDataset.build(corpus.splits["train"], tokenizer, corpus.layout, progress=False)
    cut = int(dataset.lengths[:count].sum())

    class First:
        vocabulary = dataset.vocabulary
        stream = dataset.stream[:cut]

    return First()  # type: ignore[return-value]


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Seconds of a call, and its result."""
    start = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - start, result


def speed(corpus: Corpus, name: str, rounds: int) -> dict[str, Any]:
    """Effective words per second of both sides, in alternation."""
    dataset = first_lines(corpus, SPEED_LINES)
    system = build_untrained(name, dataset)
    unigram = system.objective.unigram
    words = np.bincount(np.asarray(dataset.stream), minlength=dataset.vocabulary.size)
    effective = float((unigram.keep_probabilities().numpy() * words).sum())
    chunks = TextChunks(system, dataset.stream, size=CHUNK_SIZE, seed=0)
    train_epoch(chunks, 0, RATES[name])  # compile, and warm the caches

    lines = training_lines(corpus, SPEED_LINES)
    peer = gensim_model(name)
    peer.build_vocab(lines)
    rates: dict[str, list[float]] = {"ours": [], "gensim lists": [], "gensim file": []}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "text.txt"
        file.write_text("\n".join(map(" ".join, lines)) + "\n", encoding="utf-8")
        total = sum(map(len, lines))
        peers: dict[str, Callable[[], Any]] = {
            "gensim lists": lambda: peer.train(lines, total_examples=len(lines), epochs=1),
            "gensim file": lambda: peer.train(
                corpus_file=str(file), total_examples=len(lines), total_words=total, epochs=1
            ),
        }
        for number in range(rounds):
            seconds, _ = timed(train_epoch, chunks, number + 1, RATES[name])
            rates["ours"].append(effective / seconds)
            for peer_name, train_peer in peers.items():
                seconds, (trained, _) = timed(train_peer)
                rates[peer_name].append(trained / seconds)
    return {
        "effective share": effective / sum(map(len, lines)),
        "rates": rates,
        "against lists": ratio(rates["ours"], rates["gensim lists"]),
        "against a file": ratio(rates["ours"], rates["gensim file"]),
    }


def plural_questions(vectors: WordVectors, counts: dict[str, int]) -> list[tuple[str, ...]]:
    """Analogies of four words: a noun, its plural, another noun, its plural."""
    nouns = {word for pair in similar_nouns() for word in (pair.first, pair.second)}
    pairs = [word for word in nouns if word in vectors.index and f"{word}s" in vectors.index]
    pairs.sort(key=lambda word: (-min(counts[word], counts[f"{word}s"]), word))
    return [(a, f"{a}s", b, f"{b}s") for a, b in permutations(pairs[:PLURALS], 2)]


def evaluate_vectors(vectors: WordVectors, counts: dict[str, int]) -> dict[str, float]:
    questions = plural_questions(vectors, counts)
    answers = vectors.analogies([(a, b, c) for a, b, c, _ in questions])
    correct = [
        candidates[0].word == d for candidates, (*_, d) in zip(answers, questions, strict=True)
    ]
    agreement = vectors.similarity_correlation(similar_nouns())
    return {
        "similarity": agreement.spearman,
        "pairs": agreement.pairs,
        "analogies": statistics.mean(correct),
        "questions": len(correct),
    }


def quality(corpus: Corpus, name: str, seed: int) -> dict[str, Any]:
    """Metrics of both sides' vectors after five epochs, and training seconds."""
    lines = training_lines(corpus)
    peer = gensim_model(name, seed=seed + 1)
    peer.build_vocab(lines)
    seconds, _ = timed(lambda: peer.train(lines, total_examples=len(lines), epochs=EPOCHS))
    counts = {word: peer.wv.get_vecattr(word, "count") for word in peer.wv.index_to_key}
    theirs = evaluate_vectors(WordVectors(peer.wv.index_to_key, peer.wv.vectors), counts)
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
        ours = evaluate_vectors(word_vectors(model.system, model.tokenizer), counts)
    return {
        "system": name,
        "seed": seed,
        "ours": ours | {"seconds with a validation": run.seconds},
        "gensim": theirs | {"seconds": seconds},
    }


def collapse(corpus: Corpus, name: str, negatives: int, seed: int, epochs: int) -> dict[str, Any]:
    """Mean cosine between the vectors of the thousand most frequent words, by epoch."""
    dataset = first_lines(corpus, SPEED_LINES)
    system = build_untrained(name, dataset, seed=seed, negatives=negatives)
    unigram = system.objective.unigram
    frequent = unigram.counts.masked_fill(~unigram.is_word, 0).topk(1000).indices
    chunks = TextChunks(system, dataset.stream, size=CHUNK_SIZE, seed=seed)
    cosines = []
    for epoch in range(epochs + 1):
        directions = torch.nn.functional.normalize(system.vectors()[frequent].detach(), dim=-1)
        total = directions.sum(0).square().sum().item()
        cosines.append((total - 1000) / (1000 * 999))
        if epoch < epochs:
            train_epoch(chunks, epoch, RATES[name])
    return {"system": name, "negatives": negatives, "seed": seed, "mean cosine": cosines}


def limited(corpus: Corpus, name: str, seed: int, **settings: Any) -> dict[str, Any]:
    """Vectors trained with some settings: their quality, cosines and lengths."""
    with tempfile.TemporaryDirectory() as folder:
        run = train(
            name,
            data=corpus,
            out=Path(folder) / "run",
            settings={"threads": THREADS, "evaluate_every": 10**9, "epochs": EPOCHS} | settings,
            seed=seed,
            quiet=True,
        )
        model = load_run(run.path)
    system = model.system
    assert isinstance(system, Word2Vec)
    unigram = system.objective.unigram
    vectors = system.vectors().detach()
    frequent = unigram.counts.masked_fill(~unigram.is_word, 0).topk(1000).indices
    directions = torch.nn.functional.normalize(vectors[frequent], dim=-1)
    lengths, limit = vectors[unigram.is_word].norm(dim=1), settings.get("max_norm", 0)
    counts = {model.tokenizer.token(id): int(n) for id, n in enumerate(unigram.counts)}
    return {
        "system": name,
        "seed": seed,
        **settings,
        "seconds": run.seconds,
        "mean cosine": (directions.sum(0).square().sum().item() - 1000) / (1000 * 999),
        "mean length": lengths.mean().item(),
        "at the limit": (lengths > 0.999 * limit).double().mean().item() if limit else None,
        **evaluate_vectors(word_vectors(system, model.tokenizer), defaultdict(int, counts)),
    }


def plot(records: list[dict[str, Any]], path: Path) -> None:
    """Plot mean cosine by epoch, one line per number of negatives, one panel per system."""
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
        axis.set(title=name, xlabel="epochs", ylim=(-0.05, 1.05))
    axes[0].set(ylabel="mean cosine between words")
    axes[1].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over seeds, by system, side and metric."""
    result: dict[str, Any] = {}
    for name in RATES:
        chosen = [row for row in rows if row["system"] == name]
        if not chosen:
            continue
        for side in ("ours", "gensim"):
            for score in ("similarity", "analogies"):
                values = [row[side][score] for row in chosen]
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                result[f"{name} {side} {score}"] = [statistics.mean(values), spread]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parts", default="speed,quality,collapse")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10, help="epochs of the collapse part")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path, help="plot this record instead of training")
    parser.add_argument("--figure", type=Path, default=Path("words-collapse.svg"))
    arguments = parser.parse_args()
    if arguments.draw:
        plot(json.loads(arguments.draw.read_text(encoding="utf-8"))["collapse"], arguments.figure)
        return
    corpus = open_corpus("wordnet")
    existing = (
        json.loads(arguments.out.read_text()) if arguments.out and arguments.out.exists() else {}
    )
    record: dict[str, Any] = existing | {
        "versions": {
            "gensim": gensim.__version__,
            "numba": numba.__version__,
            "python": platform.python_version(),
        },
        "cores": os.cpu_count(),
        "threads": THREADS,
    }

    start = time.perf_counter()

    def save(part: str) -> None:
        """Save a part with its command, since parts may come from several commands."""
        record.setdefault("made by", {})[part] = {
            "command": " ".join(["python benchmarks/words.py", *sys.argv[1:]]),
            "seconds since its start": time.perf_counter() - start,
            "load of the machine at its end": os.getloadavg()[0],
        }
        print(json.dumps(record, indent=1)[-600:], flush=True)
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    if "speed" in arguments.parts:
        record["speed"] = {name: speed(corpus, name, arguments.rounds) for name in RATES}
        save("speed")
    if "collapse" in arguments.parts:
        record["collapse"] = [
            collapse(corpus, name, negatives, seed, arguments.epochs)
            for name in RATES
            for negatives in (0, 1, 5)
            for seed in range(2)
        ]
        save("collapse")
    if "limit" in arguments.parts:
        record["limit"] = []
        runs = [
            (name, {"negatives": negatives, "max_norm": limit, "learning_rate": RATES[name]})
            for name in RATES
            for negatives, limits in ((5, (0.0, 4.0, 2.0, 1.0)), (0, (0.0, 1.0)))
            for limit in limits
        ]
        for name, settings in runs:
            record["limit"].append(limited(corpus, name, 0, **settings))
            save("limit")
    if "quality" in arguments.parts:
        record["quality"] = []
        for seed in range(arguments.seeds):
            for name in RATES:
                record["quality"].append(quality(corpus, name, seed))
                record["quality summary"] = summary(record["quality"])
                save("quality")


if __name__ == "__main__":
    main()
