"""Vector indexes: build time, memory, recall and search speed.

    python benchmarks/index.py [--sizes 10000,100000,1000000] [--threads 1] [--out FILE.json]
    python benchmarks/index.py --draw FILE.json --figure FILE.svg

Vectors of width 128 and unit length are sampled around cluster means (one per hundred vectors), as
far from their own mean as the means are from each other (`--spread 1`), so that clusters overlap;
queries are sampled likewise and are none of the vectors. Recall is the share of the true ten
nearest neighbours. Each row is measured in its own process; its memory is that of the index without
the vectors, which are memory-mapped. Times are CPU time with one thread and wall-clock time with
several. Rows that a record already has are not measured again.

FAISS compares queries with vectors one by one or by matrix products, depending on the batch size.
`thresholds` compares its own choice, and that of earlier versions (one by one below twenty
queries), with lmlab's, in alternation.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measuring import rate, taking_turns

WIDTH, QUESTIONS, NEIGHBOURS = 128, 512, 10
KINDS = ("flat", "numpy", "ivf", "hnsw")
BATCHES = (1, 16, 256)
TRIED_BATCHES = (1, 4, 16, 64, 256)
SECONDS = 0.5
MADE_AT_ONCE = 50_000
OLD_THRESHOLD = 20


def make(folder: Path, size: int, spread: float) -> None:
    """Vectors and queries of one mixture, and the queries' true neighbours."""
    from lmlab.retrieval.exact_search import top_inner_products

    random = np.random.default_rng(0)
    means = random.standard_normal((max(size // 100, 1), WIDTH), dtype=np.float32)

    def drawn(count: int) -> np.ndarray:
        noise = random.standard_normal((count, WIDTH), dtype=np.float32)
        found = means[random.integers(0, len(means), count)] + spread * noise
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    path = folder / "vectors.npy"
    vectors = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(size, WIDTH))
    for first in range(0, size, MADE_AT_ONCE):
        vectors[first : first + MADE_AT_ONCE] = drawn(min(MADE_AT_ONCE, size - first))
    questions = drawn(QUESTIONS).astype(np.float32)
    np.save(folder / "questions.npy", questions)
    np.save(folder / "truth.npy", top_inner_products(questions, vectors, NEIGHBOURS)[1])


def held() -> float:
    """Anonymous memory of this process in MiB; its peak if not on Linux."""
    status = Path("/proc/self/status")
    if status.exists():
        [line] = [each for each in status.read_text().splitlines() if each.startswith("RssAnon")]
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def per_second(
    search: Callable[[np.ndarray], Any], questions: np.ndarray, batch: int, threads: int
) -> float:
    """Queries per second, in batches."""
    clock = time.process_time if threads == 1 else time.perf_counter
    place = 0

    def step() -> int:
        nonlocal place
        place = (place + batch) % (len(questions) - batch + 1)
        search(questions[place : place + batch])
        return batch

    step()
    return rate(step, seconds=SECONDS, clock=clock)


def measure(folder: Path, kind: str, threads: int) -> dict[str, Any]:
    """Build and search one kind of index, and compare with the true neighbours."""
    import faiss

    from lmlab.retrieval.dense_index import DenseIndex
    from lmlab.retrieval.exact_search import top_inner_products_numpy
    from lmlab.retrieval.faiss_index import FaissIndex, recall_at_k

    faiss.omp_set_num_threads(threads)
    questions, truth = np.load(folder / "questions.npy"), np.load(folder / "truth.npy")
    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    before, began, passed = held(), time.process_time(), time.perf_counter()
    index = DenseIndex.build(vectors, kind="flat" if kind == "numpy" else kind)
    row: dict[str, Any] = {
        "kind": kind,
        "build_cpu_seconds": time.process_time() - began,
        "build_seconds": time.perf_counter() - passed,
        "memory_mib": held() - before,
        "recall_when_built": index.recall,
    }
    inner = index._inner
    row["reach"] = inner.search_effort if isinstance(inner, FaissIndex) else None

    def search(asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if kind == "numpy":
            return top_inner_products_numpy(asked, vectors, NEIGHBOURS)
        return index.search(asked, NEIGHBOURS)

    nearest = np.einsum("bw,bkw->bk", questions, vectors[truth])
    row["recall"] = recall_at_k(search(questions)[0], nearest)
    row["per_second"] = {str(b): per_second(search, questions, b, threads) for b in BATCHES}
    return row


def thresholds(folder: Path, threads: int, rounds: int) -> dict[str, Any]:
    """lmlab's choice against FAISS's own and the earlier one, as ratios of queries per second."""
    import faiss

    from lmlab.retrieval.dense_index import FAISS_ALWAYS_MATRIX, FAISS_NEVER_MATRIX, DenseIndex

    faiss.omp_set_num_threads(threads)
    vectors, questions = np.load(folder / "vectors.npy"), np.load(folder / "questions.npy")
    index, own = DenseIndex.build(vectors), faiss.cvar.distance_compute_blas_threshold

    def by(threshold: int) -> Callable[[np.ndarray], Any]:
        def search(asked: np.ndarray) -> Any:
            faiss.cvar.distance_compute_blas_threshold = threshold
            return faiss.knn(asked, vectors, NEIGHBOURS, metric=faiss.METRIC_INNER_PRODUCT)

        return search

    def against(batch: int, threshold: int) -> dict[str, float]:
        def ours(asked: np.ndarray) -> Any:
            return index.search(asked, NEIGHBOURS)

        return taking_turns(
            lambda: per_second(ours, questions, batch, threads),
            lambda: per_second(by(threshold), questions, batch, threads),
            rounds,
        )

    rows = [
        {
            "batch": batch,
            "against_own": against(batch, own),
            "against_earlier": against(
                batch, FAISS_NEVER_MATRIX if batch < OLD_THRESHOLD else FAISS_ALWAYS_MATRIX
            ),
        }
        for batch in TRIED_BATCHES
    ]
    return {"faiss": faiss.__version__, "own_threshold": own, "rows": rows}


def in_a_process(arguments: list[str], threads: int) -> dict[str, Any]:
    """One measurement in a separate process."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    done = subprocess.run(
        [sys.executable, __file__, *arguments, "--threads", str(threads)],
        env={**os.environ, **{name: str(threads) for name in names}},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(arguments: argparse.Namespace) -> None:
    out = Path(arguments.out)
    record: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    for size in map(int, arguments.sizes.split(",")):
        key = f"{size}, {arguments.threads} threads, spread {arguments.spread:g}"
        here = record.setdefault(key, {"size": size, "width": WIDTH, "rows": []})
        missing = [k for k in KINDS if k not in {row["kind"] for row in here["rows"]}]
        if not missing and "thresholds" in here:
            continue
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder), size, arguments.spread)
            for kind in missing:
                here["rows"].append(in_a_process(["--measure", folder, kind], arguments.threads))
                print(here["rows"][-1], flush=True)
                out.write_text(json.dumps(record, indent=2) + "\n")
            rounds = ["--rounds", str(arguments.rounds)]
            here["thresholds"] = in_a_process(["--compare", folder, *rounds], arguments.threads)
            out.write_text(json.dumps(record, indent=2) + "\n")
    print_tables(record)


def print_tables(record: dict[str, Any]) -> None:
    for key, here in record.items():
        print(f"\n{key}\n\n| | build, s | memory, MiB | recall@10 | 1 | 16 | 256 |")
        print("|---|---|---|---|---|---|---|")
        for row in here["rows"]:
            speeds = " | ".join(f"{row['per_second'][str(batch)]:,.0f}" for batch in BATCHES)
            told = (
                f"{row['build_cpu_seconds']:.1f} | {row['memory_mib']:,.0f} | {row['recall']:.3f}"
            )
            print(f"| {row['kind']} | {told} | {speeds} |")
        if "thresholds" not in here:
            continue
        print("\n| batch | against FAISS's own choice | against the earlier one |\n|---|---|---|")
        for row in here["thresholds"]["rows"]:
            both = (row["against_own"], row["against_earlier"])
            cells = [f"{r['ratio']:.2f} ({r['lowest']:.2f}-{r['highest']:.2f})" for r in both]
            print(f"| {row['batch']} | {cells[0]} | {cells[1]} |")


def draw(record: dict[str, Any], figure: Path) -> None:
    """Plot queries per second by number of vectors, one line per kind, one panel per batch."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    entries = sorted(record.values(), key=lambda here: here["size"])
    shown, panels = plt.subplots(1, len(BATCHES), figsize=(9, 3), sharey=True, layout="constrained")
    for panel, batch in zip(panels, BATCHES, strict=True):
        for kind in KINDS:
            points = [
                (here["size"], row["per_second"][str(batch)])
                for here in entries
                for row in here["rows"]
                if row["kind"] == kind
            ]
            panel.loglog(*zip(*points, strict=True), marker="o", label=kind)
        panel.set_title(f"{batch} at a time")
        panel.set_xlabel("vectors")
    panels[0].set_ylabel("queries per second")
    panels[-1].legend(frameon=False)
    shown.savefig(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="10000,100000")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--spread", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", default="benchmarks/results/index.json")
    parser.add_argument("--draw")
    parser.add_argument("--figure", default="index.svg")
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "KIND"), help=argparse.SUPPRESS)
    parser.add_argument("--compare", metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        folder, kind = arguments.measure
        print(json.dumps(measure(Path(folder), kind, arguments.threads)))
    elif arguments.compare:
        print(json.dumps(thresholds(Path(arguments.compare), arguments.threads, arguments.rounds)))
    elif arguments.draw:
        draw(json.loads(Path(arguments.draw).read_text()), Path(arguments.figure))
    else:
        run(arguments)


if __name__ == "__main__":
    main()
