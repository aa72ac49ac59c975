"""Approximate nearest neighbours by FAISS: IVF and HNSW, search effort tuned to a recall.

IVF (Jégou, Douze, Schmid 2011): k-means partitions the vectors into lists, and a query searches the
`nprobe` lists with the nearest centroids. HNSW (Malkov, Yashunin 2016): a query walks a graph of
neighbours, keeping the `efSearch` best so far. The search effort is tuned on queries near some of
the vectors until the target recall is reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lmlab.core.atomic_files import new_named_file
from lmlab.core.errors import UserError
from lmlab.retrieval.exact_search import (
    Floats,
    Numbers,
    faiss_matrix_threshold,
    require_faiss,
    top_inner_products,
)

VectorProgress = Callable[[int, int], None]
"""Receives the number of vectors added and the total."""

MIN_POINTS_PER_CENTROID = 39
"""Vectors per centroid below which k-means is unreliable; FAISS's own number."""
TRAINING_POINTS_PER_CENTROID = 64
"""Vectors per centroid that k-means is trained on; more cost time and change little."""
HNSW_LINKS, EF_CONSTRUCTION = 32, 80
"""Links per vector, and candidates kept while they are chosen."""
ADD_CHUNK = 16_384
RECALL_QUERIES, RECALL_NEIGHBOURS = 200, 10
"""Queries that the recall is measured on, and neighbours per query."""
SCORE_TOLERANCE = 1e-5
"""Relative tolerance between two sums of the same products."""
MIN_SEARCH_EFFORT = {"ivf": 1, "hnsw": 16}
MAX_SEARCH_EFFORT = 4096


class FaissIndex:
    """A FAISS index (IVF or HNSW) with its search effort."""

    def __init__(self, index: Any, kind: str, recall: float | None = None) -> None:
        self.index = index
        self.kind = kind
        self.recall = recall
        """Recall when the index was built; None where unknown."""
        self.size, self.width = int(index.ntotal), int(index.d)

    @property
    def search_effort(self) -> int:
        """Lists searched (IVF: `nprobe`), candidates kept (HNSW: `efSearch`)."""
        return int(self.index.nprobe if self.kind == "ivf" else self.index.hnsw.efSearch)

    @search_effort.setter
    def search_effort(self, effort: int) -> None:
        if self.kind == "ivf":
            self.index.nprobe = effort
        else:
            self.index.hnsw.efSearch = effort

    @property
    def max_search_effort(self) -> int:
        """The effort beyond which recall cannot grow."""
        return (
            int(self.index.nlist)
            if self.kind == "ivf"
            else min(MAX_SEARCH_EFFORT, max(self.size, 16))
        )

    def search(self, queries: Floats, k: int) -> tuple[Floats, Numbers]:
        """Scores and ids (B, k), k ≤ size; -inf and -1 where too few were found."""
        faiss = require_faiss(f"an index of kind {self.kind}")
        options: dict[str, Any] = {}
        if self.kind == "hnsw":  # returns at most efSearch results
            options["params"] = faiss.SearchParametersHNSW(efSearch=max(self.search_effort, k))
        with faiss_matrix_threshold(faiss, len(queries)):
            scores, numbers = self.index.search(queries, k, **options)
        return np.where(numbers < 0, np.float32(-np.inf), scores), numbers

    def save(self, path: Path) -> None:
        """Write it atomically."""
        faiss = require_faiss(f"an index of kind {self.kind}")
        with new_named_file(path) as partial:
            try:
                faiss.write_index(self.index, str(partial))
            except RuntimeError as error:
                raise OSError(str(error).splitlines()[0]) from error


def build_faiss_index(
    vectors: Floats,
    kind: str,
    *,
    recall: float,
    seed: int,
    progress: VectorProgress = lambda done, of: None,
) -> FaissIndex:
    """Build an index of the vectors (N, W), tuned to reach `recall`.

    IVF: 4√N lists, fewer if these would hold less than 39 vectors each. Time O(N √N W) for IVF, O(N
    log N W) for HNSW; memory that of the vectors, plus 2·32 links of 4 bytes per vector for HNSW.
    HNSW graphs built by several threads are not deterministic.
    """
    faiss = require_faiss(f"an index of kind {kind}")
    inner = _empty_ivf(faiss, vectors, seed) if kind == "ivf" else _empty_hnsw(faiss, vectors, seed)
    for first in range(0, len(vectors), ADD_CHUNK):
        with faiss_matrix_threshold(faiss, ADD_CHUNK):
            inner.add(np.ascontiguousarray(vectors[first : first + ADD_CHUNK]))
        progress(min(first + ADD_CHUNK, len(vectors)), len(vectors))
    index = FaissIndex(inner, kind)
    index.recall = tune_recall(index, vectors, recall, seed)
    return index


def _empty_ivf(faiss: Any, vectors: Floats, seed: int) -> Any:
    size, width = vectors.shape
    lists = max(1, min(round(4 * math.sqrt(size)), size // MIN_POINTS_PER_CENTROID))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed, index.cp.min_points_per_centroid = seed, 1
    sample = np.random.default_rng(seed).permutation(size)[: lists * TRAINING_POINTS_PER_CENTROID]
    with faiss_matrix_threshold(faiss, len(sample)):
        index.train(np.ascontiguousarray(vectors[np.sort(sample)]))
    return index


def _empty_hnsw(faiss: Any, vectors: Floats, seed: int) -> Any:
    index = faiss.IndexHNSWFlat(vectors.shape[1], HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = EF_CONSTRUCTION
    index.hnsw.rng = faiss.RandomGenerator(seed)
    return index


def tune_recall(index: FaissIndex, vectors: Floats, recall: float, seed: int) -> float:
    """Double the search effort until the recall is reached; returns the recall.

    It is measured on queries near some of the vectors, see `perturbed_queries`; real queries may be
    harder.
    """
    queries = perturbed_queries(vectors, seed)
    k = min(RECALL_NEIGHBOURS, index.size)
    truth, _ = top_inner_products(queries, vectors, k)
    index.search_effort = min(MIN_SEARCH_EFFORT[index.kind], index.max_search_effort)
    while True:
        measured = recall_at_k(index.search(queries, k)[0], truth)
        if measured >= recall or index.search_effort >= index.max_search_effort:
            return measured
        index.search_effort = min(2 * index.search_effort, index.max_search_effort)


def perturbed_queries(vectors: Floats, seed: int) -> Floats:
    """Some of the vectors, each moved in a random direction about as far as its tenth neighbour.

    Unmoved they would be too easy: HNSW finds the vector itself, and is linked to its neighbours.
    """
    random = np.random.default_rng(seed)
    sampled = np.sort(random.permutation(len(vectors))[:RECALL_QUERIES])
    points = np.ascontiguousarray(vectors[sampled])
    _, neighbours = top_inner_products(points, vectors, min(RECALL_NEIGHBOURS + 1, len(vectors)))
    distances = np.linalg.norm(points - vectors[neighbours[:, -1]], axis=1, keepdims=True)
    steps = random.standard_normal(points.shape) / math.sqrt(points.shape[1])
    moved: Floats = (points + distances * steps).astype(np.float32)
    return moved


def recall_at_k(scores: Floats, truth: Floats) -> float:
    """Recall@k: the share of the k results whose scores (B, k) are those of true neighbours.

        recall = #{j : scores[b, j] ≥ min_i truth[b, i]} / (B k)

    truth (B, k) are the scores of the true neighbours. By score and not by id, since equal vectors
    are equally near; `SCORE_TOLERANCE` allows for rounding.
    """
    rounding = SCORE_TOLERANCE * np.abs(truth).max(axis=1, initial=0, keepdims=True)
    is_hit = scores >= truth.min(axis=1, initial=np.inf, keepdims=True) - rounding
    return float(is_hit.sum()) / max(truth.size, 1)


def load_faiss_index(path: Path, *, mapped: bool, recall: float | None = None) -> FaissIndex:
    """Load what `FaissIndex.save` wrote; with `mapped`, vectors are memory-mapped."""
    faiss = require_faiss(f"the index {path}")
    with path.open("rb") as file:
        kind = KIND_BY_MAGIC.get(file.read(4))
    if kind is None:
        raise UserError(f"{path} is not an index written by lmlab; build it again.")
    flags = 0
    if mapped:
        # Inverted lists have their own flag; the general one came in a later version.
        general = getattr(faiss, "IO_FLAG_MMAP_IFC", 0)
        flags = faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY if kind == "ivf" else general
    try:
        return FaissIndex(faiss.read_index(str(path), flags), kind, recall)
    except (RuntimeError, MemoryError, AttributeError, ValueError) as error:
        raise UserError(f"{path} is damaged or cut short; build the index again.") from error


KIND_BY_MAGIC = {b"IwFl": "ivf", b"IHNf": "hnsw"}
"""Kind of index, by the first bytes of FAISS's file."""
