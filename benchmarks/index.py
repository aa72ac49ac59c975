"""Vector indexes: build time, memory, recall and search speed.

    python benchmarks/index.py [--sizes 10000,100000,1000000] [--threads 1] [--out FILE.json]
    python benchmarks/index.py --draw FILE.json --figure FILE.svg

Unit vectors of width 128 are sampled around cluster means (one per hundred vectors), as
far from their own mean as the means are from each other (`--spread 1`), so that clusters overlap;
queries are sampled in the same way and are not in the index. Recall is recall@10 against exact
search. Each row is measured in its own process; its memory is that of the index without
the vectors, which are memory-mapped. Times are CPU time with one thread and wall-clock time with
several. Existing rows are not measured again.

FAISS computes inner products one query at a time or as a matrix product, depending on the batch
size. `thresholds` compares its default threshold, and that of earlier versions (matrix products
from twenty queries on), with lmlab's, in alternation.
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
from measuring import measure_alternating, rate

WIDTH, QUERIES, NEIGHBOURS = 128, 512, 10
KINDS = ("flat", "numpy", "ivf", "hnsw")
BATCHES = (1, 16, 256)
THRESHOLD_BATCHES = (1, 4, 16, 64, 256)
SECONDS = 0.5
CHUNK_SIZE = 50_000
OLD_THRESHOLD = 20


def make_data(folder: Path, size: int, spread: float) -> None:
    """Save vectors and queries sampled from one mixture, and the queries' true neighbours."""
    from lmlab.retrieval.exact_search import top_inner_products

    random = np.random.default_rng(0)
    means = random.standard_normal((max(size // 100, 1), WIDTH), dtype=np.float32)

    def sample(count: int) -> np.ndarray:
        noise = random.standard_normal((count, WIDTH), dtype=np.float32)
        points = means[random.integers(0, len(means), count)] + spread * noise
        return points / np.linalg.norm(points, axis=1, keepdims=True)

    path = folder / "vectors.npy"
    vectors = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(size, WIDTH))
    for first in range(0, size, CHUNK_SIZE):
        vectors[first : first + CHUNK_SIZE] = sample(min(CHUNK_SIZE, size - first))
    queries = sample(QUERIES).astype(np.float32)
    np.save(folder / "queries.npy", queries)
    np.save(folder / "truth.npy", top_inner_products(queries, vectors, NEIGHBOURS)[1])


def anonymous_memory() -> float:
    """Anonymous memory of this process in MiB; its peak if not on Linux."""
    status = Path("/proc/self/status")
    if status.exists():
        [line] = [entry for entry in status.read_text().splitlines() if entry.startswith("RssAnon")]
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def queries_per_second(
    search: Callable[[np.ndarray], Any], queries: np.ndarray, batch: int, threads: int
) -> float:
    """Search throughput in queries per second, at one batch size."""
    clock = time.process_time if threads == 1 else time.perf_counter
    offset = 0

    def step() -> int:
        nonlocal offset
        offset = (offset + batch) % (len(queries) - batch + 1)
        search(queries[offset : offset + batch])
        return batch

    step()
    return rate(step, seconds=SECONDS, clock=clock)


def measure(folder: Path, kind: str, threads: int) -> dict[str, Any]:
    """Build one kind of index; measure build time, memory, recall and throughput."""
    import faiss

    from lmlab.retrieval.dense_index import DenseIndex
    from lmlab.retrieval.exact_search import top_inner_products_numpy
    from lmlab.retrieval.faiss_index import FaissIndex, recall_at_k

    faiss.omp_set_num_threads(threads)
    queries, truth = np.load(folder / "queries.npy"), np.load(folder / "truth.npy")
    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    memory_before, cpu_start, wall_start = (
        anonymous_memory(),
        time.process_time(),
        time.perf_counter(),
    )
    index = DenseIndex.build(vectors, kind="flat" if kind == "numpy" else kind)
    row: dict[str, Any] = {
        "kind": kind,
        "build_cpu_seconds": time.process_time() - cpu_start,
        "build_seconds": time.perf_counter() - wall_start,
        "memory_mib": anonymous_memory() - memory_before,
        "recall_when_built": index.recall,
    }
    inner = index._inner
    row["reach"] = inner.search_effort if isinstance(inner, FaissIndex) else None

    def search(query_batch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if kind == "numpy":
            return top_inner_products_numpy(query_batch, vectors, NEIGHBOURS)
        return index.search(query_batch, NEIGHBOURS)

    nearest = np.einsum("bw,bkw->bk", queries, vectors[truth])
    row["recall"] = recall_at_k(search(queries)[0], nearest)
    row["per_second"] = {str(b): queries_per_second(search, queries, b, threads) for b in BATCHES}
    return row


def thresholds(folder: Path, threads: int, rounds: int) -> dict[str, Any]:
    """Throughput ratios of lmlab's threshold to FAISS's default and to the earlier default."""
    import faiss

    from lmlab.retrieval.dense_index import FAISS_ALWAYS_MATRIX, FAISS_NEVER_MATRIX, DenseIndex

    faiss.omp_set_num_threads(threads)
    vectors, queries = np.load(folder / "vectors.npy"), np.load(folder / "queries.npy")
    index, faiss_threshold = DenseIndex.build(vectors), faiss.cvar.distance_compute_blas_threshold

    def faiss_search(threshold: int) -> Callable[[np.ndarray], Any]:
        def search(query_batch: np.ndarray) -> Any:
            faiss.cvar.distance_compute_blas_threshold = threshold
            return faiss.knn(query_batch, vectors, NEIGHBOURS, metric=faiss.METRIC_INNER_PRODUCT)

        return search

    def compare(batch: int, threshold: int) -> dict[str, float]:
        def ours(query_batch: np.ndarray) -> Any:
            return index.search(query_batch, NEIGHBOURS)

        return measure_alternating(
            lambda: queries_per_second(ours, queries, batch, threads),
            lambda: queries_per_second(faiss_search(threshold), queries, batch, threads),
            rounds,
        )

    rows = [
        {
            "batch": batch,
            "against_own": compare(batch, faiss_threshold),
            "against_earlier": compare(
                batch, FAISS_NEVER_MATRIX if batch < OLD_THRESHOLD else FAISS_ALWAYS_MATRIX
            ),
        }
        for batch in THRESHOLD_BATCHES
    ]
    return {"faiss": faiss.__version__, "own_threshold": faiss_threshold, "rows": rows}


def run_in_subprocess(arguments: list[str], threads: int) -> dict[str, Any]:
    """Call this script in a separate process; return the measurement it prints."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    process = subprocess.run(
        [sys.executable, __file__, *arguments, "--threads", str(threads)],
        env={**os.environ, **{name: str(threads) for name in names}},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


def run(arguments: argparse.Namespace) -> None:
    out = Path(arguments.out)
    record: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    for size in map(int, arguments.sizes.split(",")):
        key = f"{size}, {arguments.threads} threads, spread {arguments.spread:g}"
        entry = record.setdefault(key, {"size": size, "width": WIDTH, "rows": []})
        missing = [k for k in KINDS if k not in {row["kind"] for row in entry["rows"]}]
        if not missing and "thresholds" in entry:
            continue
        with tempfile.TemporaryDirectory() as folder:
            make_data(Path(folder), size, arguments.spread)
            for kind in missing:
                entry["rows"].append(
                    run_in_subprocess(["--measure", folder, kind], arguments.threads)
                )
                print(entry["rows"][-1], flush=True)
                out.write_text(json.dumps(record, indent=2) + "\n")
            rounds = ["--rounds", str(arguments.rounds)]
            entry["thresholds"] = run_in_subprocess(
                ["--compare", folder, *rounds], arguments.threads
            )
            out.write_text(json.dumps(record, indent=2) + "\n")
    print_tables(record)


def print_tables(record: dict[str, Any]) -> None:
    for key, entry in record.items():
        print(f"\n{key}\n\n| | build, s | memory, MiB | recall@10 | 1 | 16 | 256 |")
        print("|---|---|---|---|---|---|---|")
        for row in entry["rows"]:
            speeds = " | ".join(f"{row['per_second'][str(batch)]:,.0f}" for batch in BATCHES)
            build = (
                f"{row['build_cpu_seconds']:.1f} | {row['memory_mib']:,.0f} | {row['recall']:.3f}"
            )
            print(f"| {row['kind']} | {build} | {speeds} |")
        if "thresholds" not in entry:
            continue
        print("\n| batch | vs. FAISS's default | vs. the earlier default |\n|---|---|---|")
        for row in entry["thresholds"]["rows"]:
            both = (row["against_own"], row["against_earlier"])
            cells = [f"{r['ratio']:.2f} ({r['lowest']:.2f}-{r['highest']:.2f})" for r in both]
            print(f"| {row['batch']} | {cells[0]} | {cells[1]} |")


def plot(record: dict[str, Any], path: Path) -> None:
    """Plot queries per second by number of vectors, one line per kind, one panel per batch size."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    entries = sorted(record.values(), key=lambda entry: entry["size"])
    figure, panels = plt.subplots(
        1, len(BATCHES), figsize=(9, 3), sharey=True, layout="constrained"
    )
    for panel, batch in zip(panels, BATCHES, strict=True):
        for kind in KINDS:
            points = [
                (entry["size"], row["per_second"][str(batch)])
                for entry in entries
                for row in entry["rows"]
                if row["kind"] == kind
            ]
            panel.loglog(*zip(*points, strict=True), marker="o", label=kind)
        panel.set_title(f"batch size {batch}")
        panel.set_xlabel("vectors")
    panels[0].set_ylabel("queries per second")
    panels[-1].legend(frameon=False)
    figure.savefig(path)


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
        plot(json.loads(Path(arguments.draw).read_text()), Path(arguments.figure))
    else:
        run(arguments)


if __name__ == "__main__":
    main()
