"""Dense index: exact and approximate search, saving, memory mapping and errors."""

from __future__ import annotations

import builtins
from pathlib import Path

import numpy as np
import pytest

from lmlab.core.errors import UserError
from lmlab.retrieval import exact_search, faiss_index
from lmlab.retrieval.dense_index import DenseIndex

KINDS = ("flat", "ivf", "hnsw")


def clustered(count: int, seed: int, *, width: int = 16) -> np.ndarray:
    """Unit vectors around twenty means, which are the same for every seed."""
    means = np.random.default_rng(99).standard_normal((20, width))
    random = np.random.default_rng(seed)
    vectors = means[random.integers(0, 20, count)] + 0.7 * random.standard_normal((count, width))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def without_faiss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate an installation without FAISS."""
    real = builtins.__import__

    def refuse(name: str, *arguments: object, **keywords: object) -> object:
        if name == "faiss":
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.mark.parametrize("kind", KINDS)
def test_search_returns_inner_product_neighbours(kind: str):
    pytest.importorskip("faiss")
    vectors, queries = clustered(3000, 0), clustered(50, 1)
    index = DenseIndex.build(vectors, kind=kind)
    assert (index.size, index.width, index.kind) == (3000, 16, kind)
    scores, numbers = index.search(queries, 10)
    assert scores.shape == numbers.shape == (50, 10)
    assert (np.diff(scores, axis=1) <= 0).all()
    inner = np.einsum("bw,bkw->bk", queries, vectors[numbers])
    np.testing.assert_allclose(scores, inner, atol=1e-6)
    truth = -np.sort(-(queries @ vectors.T), axis=1)[:, :10]
    # Recall was tuned on other queries of the same distribution; samples of 50 differ slightly.
    assert faiss_index.recall_at_k(scores, truth) >= (1 if kind == "flat" else 0.93)
    assert index.recall is not None and index.recall >= (1 if kind == "flat" else 0.95)


def test_recall_at_k_by_hand():
    """Of 3 each: two hits (2 < 3 is a miss), and one hit (nothing more returned); 2/6 + 1/6."""
    truth = np.array([[5, 4, 3], [5, 4, 3]], dtype=np.float32)
    returned = np.array([[5, 3, 2], [4, -np.inf, -np.inf]], dtype=np.float32)
    assert faiss_index.recall_at_k(returned, truth) == pytest.approx(3 / 6)
    # Ties with the k-th neighbour count, also within rounding error.
    tied = np.array([[5, 3, 3], [5, 4, np.nextafter(np.float32(3), 0)]], dtype=np.float32)
    assert faiss_index.recall_at_k(tied, truth) == 1


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_ties_do_not_reduce_recall(kind: str):
    """Each of 100 vectors occurs 30 times: any ten of the nearest 30 are the nearest ten."""
    pytest.importorskip("faiss")
    vectors = np.repeat(clustered(100, 0), 30, axis=0)
    index = DenseIndex.build(vectors, kind=kind, recall=0.95)
    assert index.recall is not None and index.recall >= 0.95


def test_higher_target_recall_increases_search_effort():
    pytest.importorskip("faiss")
    vectors = np.random.default_rng(0).standard_normal((3000, 16)).astype(np.float32)
    low = faiss_index.build_faiss_index(vectors, "ivf", recall=0.3, seed=0)
    high = faiss_index.build_faiss_index(vectors, "ivf", recall=0.99, seed=0)
    assert low.search_effort < high.search_effort <= low.index.nlist == high.index.nlist
    assert low.recall is not None and high.recall is not None
    assert 0.3 <= low.recall < 0.99 <= high.recall
    # 4√3000 = 219 lists would hold 14 vectors each; 3000 / 39 is the most that k-means can train.
    assert low.index.nlist == 76


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mapped", [True, False])
def test_index_save_and_load_round_trip(tmp_path: Path, kind: str, mapped: bool):
    pytest.importorskip("faiss")
    index, queries = DenseIndex.build(clustered(500, 0), kind=kind), clustered(5, 1)
    index.save(tmp_path / "new" / "index")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["index"]
    loaded = DenseIndex.load(tmp_path / "new" / "index", mapped=mapped)
    assert (loaded.size, loaded.width, loaded.kind) == (500, 16, kind)
    for ours, theirs in zip(index.search(queries, 7), loaded.search(queries, 7), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_truncated_index_file_is_refused(tmp_path: Path, kind: str, share: float):
    pytest.importorskip("faiss")
    path = tmp_path / "index"
    DenseIndex.build(clustered(500, 0), kind=kind).save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    for mapped in (True, False):
        with pytest.raises(UserError, match=r"damaged or cut short|not an index written by lmlab"):
            DenseIndex.load(path, mapped=mapped)


@pytest.mark.parametrize("kind", KINDS)
def test_missing_neighbours_have_number_minus_one(kind: str):
    pytest.importorskip("faiss")
    vectors = np.array([[1, 0], [0, 2], [-1, 0]], dtype=np.float32)
    scores, numbers = DenseIndex.build(vectors, kind=kind).search(vectors[:1], 5)
    assert numbers.tolist() == [[0, 1, 2, -1, -1]]
    assert scores.tolist() == [[1, 0, -1, -np.inf, -np.inf]]
    none = DenseIndex.build(vectors, kind=kind).search(np.empty((0, 2), np.float32), 5)
    assert [part.shape for part in none] == [(0, 5), (0, 5)]


def test_index_from_batches_equals_index_from_array():
    vectors = clustered(100, 0)
    index = DenseIndex.build(vectors[first : first + 30] for first in range(0, 100, 30))
    ours, theirs = index.search(vectors, 3), DenseIndex.build(vectors).search(vectors, 3)
    np.testing.assert_array_equal(ours[1], theirs[1])


def test_index_is_deterministic_given_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    faiss = pytest.importorskip("faiss")
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)  # HNSW graphs depend on the order of threads
    try:
        for kind in ("ivf", "hnsw"):
            for name, seed in (("a", 1), ("b", 1), ("c", 2)):
                DenseIndex.build(clustered(400, 0), kind=kind, seed=seed).save(tmp_path / name)
            first, same, other = ((tmp_path / name).read_bytes() for name in "abc")
            assert first == same != other
    finally:
        faiss.omp_set_num_threads(threads)


def test_search_leaves_inputs_and_faiss_settings_unchanged(monkeypatch: pytest.MonkeyPatch):
    faiss = pytest.importorskip("faiss")
    vectors = clustered(200, 0)
    before, threshold = vectors.copy(), faiss.cvar.distance_compute_blas_threshold
    index = DenseIndex.build(vectors, kind="hnsw")
    index.search(vectors[:1], 100)
    index.search(vectors[:100], 3)
    np.testing.assert_array_equal(vectors, before)
    assert faiss.cvar.distance_compute_blas_threshold == threshold


def test_faiss_matrix_threshold_depends_on_query_count():
    faiss = pytest.importorskip("faiss")
    few = exact_search.MATRIX_QUERIES_PER_THREAD * faiss.omp_get_max_threads() - 1
    for query_count, threshold in (
        (1, exact_search.FAISS_NEVER_MATRIX),
        (few, exact_search.FAISS_NEVER_MATRIX),
        (few + 1, exact_search.FAISS_ALWAYS_MATRIX),
    ):
        with exact_search.faiss_matrix_threshold(faiss, query_count):
            assert faiss.cvar.distance_compute_blas_threshold == threshold


def test_without_faiss_only_the_flat_index_works(without_faiss: None):
    vectors, queries = clustered(300, 0), clustered(4, 1)
    scores, numbers = DenseIndex.build(vectors).search(queries, 5)
    products = queries @ vectors.T
    np.testing.assert_array_equal(numbers, np.argsort(-products, axis=1)[:, :5])
    np.testing.assert_array_equal(scores, np.take_along_axis(products, numbers, 1))
    for kind in ("ivf", "hnsw"):
        with pytest.raises(UserError, match=r"kind .* needs FAISS.*lmlab\[retrieval\]"):
            DenseIndex.build(vectors, kind=kind)


@pytest.mark.parametrize("chunk", [1, 7, 10**6])
def test_chunked_numpy_search_breaks_ties_by_number(monkeypatch: pytest.MonkeyPatch, chunk: int):
    """Small integers give many equal scores: the lower number comes first."""
    monkeypatch.setattr(exact_search, "SCORE_CHUNK", chunk)
    random = np.random.default_rng(0)
    vectors = random.integers(-1, 2, (50, 3)).astype(np.float32)
    queries = random.integers(-1, 2, (6, 3)).astype(np.float32)
    scores, numbers = exact_search.top_inner_products_numpy(queries, vectors, 4)
    for row, query in enumerate(queries):
        products = (vectors @ query).tolist()
        expected = sorted(range(50), key=lambda n: (-products[n], n))[:4]
        assert numbers[row].tolist() == expected
        assert scores[row].tolist() == [products[n] for n in expected]


def test_invalid_index_arguments_are_refused(tmp_path: Path):
    vectors = clustered(10, 0)
    index = DenseIndex.build(vectors)
    for k in (0, -3):
        with pytest.raises(UserError, match=f"k must be at least 1, got {k}"):
            index.search(vectors, k)
    with pytest.raises(UserError, match=r"vectors of width 16, got queries of shape \(10, 8\)"):
        index.search(vectors[:, :8], 1)
    with pytest.raises(UserError, match="infinite or NaN"):
        index.search(np.full((1, 16), np.nan, np.float32), 1)
    bad = vectors.copy()
    bad[7, 2] = np.inf
    with pytest.raises(UserError, match="vector 7 has infinite"):
        DenseIndex.build(bad)
    for empty in (np.empty((0, 16), np.float32), vectors[0], iter(())):
        with pytest.raises(UserError, match="vectors must have shape"):
            DenseIndex.build(empty)
    with pytest.raises(UserError, match="vectors must have one width"):
        DenseIndex.build([vectors, vectors[:, :3]])
    with pytest.raises(UserError, match="no kind of index called 'falt'; did you mean 'flat'"):
        DenseIndex.build(vectors, kind="falt")  # type: ignore[arg-type]
    for recall in (0, 1.1):
        with pytest.raises(UserError, match="recall must be above 0"):
            DenseIndex.build(vectors, kind="ivf", recall=recall)
    with pytest.raises(UserError, match="there is no index at"):
        DenseIndex.load(tmp_path / "nothing")
    np.save(tmp_path / "whole.npy", np.arange(4))
    with pytest.raises(UserError, match="holds no index vectors"):
        DenseIndex.load(tmp_path / "whole.npy")
