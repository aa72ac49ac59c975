"""Exact maximum inner product search: by FAISS if installed, else by numpy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmlab.core.errors import UserError

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]

MATRIX_QUERIES_PER_THREAD = 6
"""Queries per thread from which FAISS should use matrix products instead of one scan per query. Its
own rule (scans below 20 queries; in 1.15 below 128,000 numbers in all queries) reads all vectors
once per query: benchmarks/index.py measures the cost."""
FAISS_ALWAYS_MATRIX, FAISS_NEVER_MATRIX = 0, 2**31 - 1
"""Thresholds that make FAISS use matrix products always or never, in all its versions."""
SCORE_CHUNK = 2**24
"""Scores that numpy holds in memory at once: queries × vectors."""
_threshold_lock = threading.RLock()


def import_faiss() -> Any | None:
    """FAISS, or None where it is not installed."""
    try:
        # Imported lazily: an optional dependency, and slow to import.
        import faiss
    except ImportError:
        return None
    return faiss


def require_faiss(why: str) -> Any:
    """FAISS, or a UserError that says how to install it."""
    faiss = import_faiss()
    if faiss is None:
        raise UserError(
            f"{why} needs FAISS, which is not installed: pip install 'lmlab[retrieval]'; an "
            "index of kind flat does not need it."
        )
    return faiss


@contextmanager
def faiss_matrix_threshold(faiss: Any, queries: int) -> Iterator[None]:
    """Set FAISS to the faster search method for so many queries, and restore it on exit.

    The setting is global, so concurrent searches wait for each other.
    """
    use_matrix = queries >= MATRIX_QUERIES_PER_THREAD * faiss.omp_get_max_threads()
    with _threshold_lock:
        before = faiss.cvar.distance_compute_blas_threshold
        faiss.cvar.distance_compute_blas_threshold = (
            FAISS_ALWAYS_MATRIX if use_matrix else FAISS_NEVER_MATRIX
        )
        try:
            yield
        finally:
            faiss.cvar.distance_compute_blas_threshold = before


def top_inner_products(queries: Floats, vectors: Floats, k: int) -> tuple[Floats, Numbers]:
    """Scores and ids (B, k) of the vectors (N, W) with the largest inner products, k ≤ N.

    Time O(B N W); FAISS holds B·k numbers besides the vectors, which may be memory-mapped.
    """
    faiss = import_faiss()
    if faiss is None:
        return top_inner_products_numpy(queries, vectors, k)
    with faiss_matrix_threshold(faiss, len(queries)):
        scores, numbers = faiss.knn(queries, vectors, k, metric=faiss.METRIC_INNER_PRODUCT)
    return scores, numbers


def top_inner_products_numpy(queries: Floats, vectors: Floats, k: int) -> tuple[Floats, Numbers]:
    """The same without FAISS; ties go to the lower id.

    Processes the vectors in chunks, so that all scores are never in memory at once.
    """
    rows = len(queries)
    at_once = max(k, SCORE_CHUNK // max(rows, 1), 1)
    scores = np.empty((rows, 0), dtype=np.float32)
    numbers = np.empty((rows, 0), dtype=np.int64)
    for first in range(0, len(vectors), at_once):
        chunk_scores = queries @ vectors[first : first + at_once].T
        indices = top_k_indices(chunk_scores, k)
        scores = np.hstack([scores, np.take_along_axis(chunk_scores, indices, 1)])
        numbers = np.hstack([numbers, indices + first])
        best = top_k_indices(scores, k)
        scores = np.take_along_axis(scores, best, 1)
        numbers = np.take_along_axis(numbers, best, 1)
    return scores, numbers


def top_k_indices(scores: Floats, k: int) -> Numbers:
    """Indices (B, k) of the largest scores of each row, descending."""
    columns = scores.shape[1]
    if k >= columns:
        return np.argsort(-scores, axis=1, kind="stable")
    # All that reach the k-th largest, so that ties go to the first.
    threshold = np.partition(scores, columns - k, axis=1)[:, columns - k, None]
    order = np.empty((len(scores), k), dtype=np.int64)
    for row, eligible in enumerate(scores >= threshold):
        indices = np.flatnonzero(eligible)
        order[row] = indices[np.argsort(-scores[row, indices], kind="stable")[:k]]
    return order
