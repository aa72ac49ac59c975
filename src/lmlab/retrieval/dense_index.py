"""Dense vector index: maximum inner product search, exact or by FAISS; cached index of a run."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from tokenize import TokenError
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lmlab.core.atomic_files import new_file, telling_disk_errors, write_json
from lmlab.core.errors import LmlabWarning, UserError, unknown_name
from lmlab.core.untrusted_input import read_json_object
from lmlab.retrieval import faiss_index
from lmlab.retrieval.exact_search import Floats, Numbers, top_inner_products
from lmlab.retrieval.faiss_index import FaissIndex
from lmlab.retrieval.index_options import DEFAULT_RECALL, IndexKind

"""Target recall of an approximate index."""
NPY_MAGIC = b"\x93NUMPY"
CHECK_CHUNK = 65_536


class ExactIndex:
    """All vectors (N, W), each compared with every query."""

    kind = "flat"
    recall = 1.0

    def __init__(self, vectors: Floats) -> None:
        self.vectors = vectors
        self.size, self.width = vectors.shape

    def search(self, queries: Floats, k: int) -> tuple[Floats, Numbers]:
        """Scores and indices (B, k), k ≤ size."""
        return top_inner_products(queries, self.vectors, k)

    def save(self, path: Path) -> None:
        """Write the vectors atomically."""
        with telling_disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as file:
            np.save(file, self.vectors)


class DenseIndex:
    """Vectors (N, W) with ids 0 … N - 1, searched by inner product with a query.

    flat compares every query with every vector, O(N W) each, and needs no FAISS; ivf and hnsw
    search a part of them and miss some (`recall` is the share found when they were built).
    """

    def __init__(self, inner: ExactIndex | FaissIndex) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return f"DenseIndex({self.kind}, {self.size} × {self.width})"

    @property
    def size(self) -> int:
        """N, the number of vectors."""
        return self._inner.size

    @property
    def width(self) -> int:
        """W, the vector dimension."""
        return self._inner.width

    @property
    def kind(self) -> IndexKind:
        return cast(IndexKind, self._inner.kind)

    @property
    def recall(self) -> float | None:
        """Recall@10 when the index was built; None where unknown."""
        return self._inner.recall

    @classmethod
    def build(
        cls,
        vectors: NDArray[np.float32] | Iterable[NDArray[np.float32]],
        *,
        kind: IndexKind = "flat",
        seed: int = 0,
        recall: float = DEFAULT_RECALL,
        progress: Callable[[int, int], None] = lambda done, of: None,
    ) -> DenseIndex:
        """Build an index of vectors (N, W), possibly memory-mapped, or of batches of them.

        ivf and hnsw are tuned to reach `recall` on some of the vectors; `seed` fixes their
        randomness. `progress` receives the number of vectors added and the total.
        """
        check_kind(kind)
        if not 0 < recall <= 1:
            raise UserError(f"recall must be above 0 and at most 1, got {recall}.")
        array = _checked(vectors if isinstance(vectors, np.ndarray) else _join(vectors))
        if kind == "flat":
            return cls(ExactIndex(array))
        return cls(
            faiss_index.build_faiss_index(array, kind, recall=recall, seed=seed, progress=progress)
        )

    def search(self, queries: NDArray[np.float32], k: int) -> tuple[Floats, Numbers]:
        """(B, k) scores and (B, k) ids of the best vectors for queries (B, W), best first.

        If fewer than k exist or are found, the remaining entries have score -inf and id -1.
        """
        if k < 1:
            raise UserError(f"k must be at least 1, got {k}.")
        contiguous = np.ascontiguousarray(queries, dtype=np.float32)
        if contiguous.ndim != 2 or contiguous.shape[1] != self.width:
            raise UserError(
                f"the index holds vectors of width {self.width}, got queries of shape "
                f"{contiguous.shape}; use the encoder that the index was built with."
            )
        if not np.isfinite(contiguous).all():
            raise UserError("a query vector has infinite or NaN values.")
        limit = min(k, self.size)
        if not len(contiguous):
            return np.empty((0, k), dtype=np.float32), np.empty((0, k), dtype=np.int64)
        scores, numbers = self._inner.search(contiguous, limit)
        padding = ((0, 0), (0, k - limit))
        if k > limit:
            scores = np.pad(scores, padding, constant_values=-np.inf)
            numbers = np.pad(numbers, padding, constant_values=-1)
        return scores, numbers

    def save(self, path: Path) -> None:
        """Write it atomically to one file: flat as .npy, the others in FAISS's format."""
        self._inner.save(Path(path))

    @classmethod
    def load(cls, path: Path, *, mapped: bool = True, recall: float | None = None) -> DenseIndex:
        """Load what `save` wrote; with `mapped`, vectors are memory-mapped.

        `recall` is the recall of an approximate index when it was built, if recorded.
        """
        path = Path(path)
        if not path.is_file():
            raise UserError(f"there is no index at {path}; check the path.")
        with path.open("rb") as file:
            exact = file.read(len(NPY_MAGIC)) == NPY_MAGIC
        if exact:
            return cls(ExactIndex(read_vectors(path, mapped=mapped)))
        return cls(faiss_index.load_faiss_index(path, mapped=mapped, recall=recall))


def check_kind(kind: str) -> None:
    """Raise a UserError for an unknown kind of index."""
    if kind not in get_args(IndexKind):
        raise unknown_name("kind of index", kind, get_args(IndexKind))


def read_vectors(path: Path, *, mapped: bool = True) -> Floats:
    """The vectors (N, W) of an .npy file."""
    try:
        vectors = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, ValueError, EOFError, TokenError, SyntaxError, OverflowError) as error:
        raise UserError(f"{path} is damaged or cut short; build the index again.") from error
    if vectors.ndim != 2 or vectors.dtype != np.float32:
        raise UserError(f"{path} holds no index vectors; build the index again.")
    # As a plain array: slicing numpy.memmap is slower.
    return np.asarray(vectors)


def _join(batches: Iterable[NDArray[np.float32]]) -> NDArray[np.float32]:
    arrays = [np.asarray(batch) for batch in batches]
    widths = {batch.shape[1:] for batch in arrays}
    if len(widths) > 1:
        raise UserError(f"vectors must have one width, got {sorted(widths)}.")
    return np.concatenate(arrays) if arrays else np.empty((0, 0), dtype=np.float32)


def _checked(vectors: NDArray[np.float32]) -> Floats:
    if vectors.ndim != 2 or 0 in vectors.shape:
        raise UserError(f"index vectors must have shape (number, width), got {vectors.shape}.")
    contiguous = np.ascontiguousarray(vectors, dtype=np.float32)
    for first in range(0, len(contiguous), CHECK_CHUNK):
        bad = ~np.isfinite(contiguous[first : first + CHECK_CHUNK]).all(axis=1)
        if bad.any():
            raise UserError(
                f"vector {first + int(bad.argmax())} has infinite or NaN values; check the "
                "encoder (lmlab doctor)."
            )
    return contiguous


INDEX_FILE, INDEX_METADATA_FILE = "index.faiss", "index.json"


class CachedIndex:
    """Cached index of the vectors (N, width) of a run, rebuilt where it does not match.

    index.json holds a hash of the vectors and one of index.faiss, so that an index that is stale,
    truncated or damaged is never searched. It can be rebuilt at any time, so it is not in the run's
    manifest. Cost: vectors and file are read once.
    """

    def __init__(self, folder: Path, vectors: Tensor) -> None:
        self.path, self.about = folder / INDEX_FILE, folder / INDEX_METADATA_FILE
        self._own = vectors, vectors._version
        self._damaged = False

    def get(self, vectors: Tensor, kind: IndexKind) -> DenseIndex:
        """An index of these vectors: the cached one if it matches, else a new one.

        It is written only if the vectors are still the run's own: not for edited documents, say.
        """
        array = vectors.detach().float().cpu().numpy()
        content = _fingerprint(array, kind)
        if (cached := self._read(content)) is not None:
            return cached
        built = DenseIndex.build(array, kind=kind)
        if vectors is self._own[0] and vectors._version == self._own[1]:
            self._write(built, content)
        return built

    def _read(self, content: str) -> DenseIndex | None:
        """The cached index, if it is intact and of these vectors."""
        try:
            metadata = read_json_object(self.about)
            if metadata["vectors"] != content:
                return None  # trained further since, say
            if metadata["file"] == _file_hash(self.path):
                return DenseIndex.load(self.path, recall=metadata["recall"])
        except (OSError, ValueError, KeyError, TypeError, UserError):
            pass
        self._damaged = self.path.exists() or self.about.exists()
        return None

    def _write(self, index: DenseIndex, content: str) -> None:
        """Write the index, then its description: if interrupted, they mismatch; it is rebuilt."""
        if self._damaged:
            warnings.warn(
                f"{self.path} was damaged, truncated or missing; it was rebuilt.",
                LmlabWarning,
                stacklevel=2,
            )
        try:
            index.save(self.path)
            metadata: dict[str, Any] = {"vectors": content, "file": _file_hash(self.path)}
            write_json(self.about, {**metadata, "kind": index.kind, "recall": index.recall})
        except UserError as error:  # a read-only run can still be searched
            message = f"the index is rebuilt whenever this run is loaded: {error}"
            warnings.warn(message, LmlabWarning, stacklevel=2)


def _fingerprint(vectors: Floats, kind: IndexKind) -> str:
    """Hash of everything the index is built from."""
    digest = hashlib.blake2b(f"{kind} {DEFAULT_RECALL} {vectors.shape}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(vectors).data)
    return digest.hexdigest()


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
