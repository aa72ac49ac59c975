"""The index of vectors: exact and approximate, saved whole, mapped, and what it refuses."""

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
    """Vectors of length one around twenty means, which are the same for every seed."""
    means = np.random.default_rng(99).standard_normal((20, width))
    random = np.random.default_rng(seed)
    found = means[random.integers(0, 20, count)] + 0.7 * random.standard_normal((count, width))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def without_faiss(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the extra is not installed."""
    real = builtins.__import__

    def refuse(name: str, *arguments: object, **words: object) -> object:
        if name == "faiss":
            raise ImportError(name)
        return real(name, *arguments, **words)

    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_are_found_and_scored_by_the_inner_product(kind: str):
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
    # The vectors it was tried on are alike; between two samples of 50 the recall differs a little.
    assert faiss_index.recall_at_k(scores, truth) >= (1 if kind == "flat" else 0.93)
    assert index.recall is not None and index.recall >= (1 if kind == "flat" else 0.95)


def test_recall_is_the_share_found_that_is_as_near_as_the_kth_neighbour():
    """Of 3 each: all but one (2 < 3), and one alone (nothing more was found); 2/6 + 1/6."""
    truth = np.array([[5, 4, 3], [5, 4, 3]], dtype=np.float32)
    found = np.array([[5, 3, 2], [4, -np.inf, -np.inf]], dtype=np.float32)
    assert faiss_index.recall_at_k(found, truth) == pytest.approx(3 / 6)
    # What is as near as the last counts, and what rounding made a little less.
    equal = np.array([[5, 3, 3], [5, 4, np.nextafter(np.float32(3), 0)]], dtype=np.float32)
    assert faiss_index.recall_at_k(equal, truth) == 1


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_equal_vectors_are_no_misses(kind: str):
    """Each of 100 vectors stands there 30 times: any ten of the nearest 30 are the nearest ten."""
    pytest.importorskip("faiss")
    vectors = np.repeat(clustered(100, 0), 30, axis=0)
    index = DenseIndex.build(vectors, kind=kind, recall=0.95)
    assert index.recall is not None and index.recall >= 0.95


def test_more_recall_is_had_by_looking_further():
    pytest.importorskip("faiss")
    vectors = np.random.default_rng(0).standard_normal((3000, 16)).astype(np.float32)
    little = faiss_index.build_faiss_index(vectors, "ivf", recall=0.3, seed=0)
    much = faiss_index.build_faiss_index(vectors, "ivf", recall=0.99, seed=0)
    assert little.search_effort < much.search_effort <= little.index.nlist == much.index.nlist
    assert little.recall is not None and much.recall is not None
    assert 0.3 <= little.recall < 0.99 <= much.recall
    # 4√3000 = 219 lists would hold 14 vectors each; 3000 / 39 are as many as can be learnt.
    assert little.index.nlist == 76


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mapped", [True, False])
def test_it_is_saved_and_loaded(tmp_path: Path, kind: str, mapped: bool):
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
def test_a_file_cut_short_is_told(tmp_path: Path, kind: str, share: float):
    pytest.importorskip("faiss")
    path = tmp_path / "index"
    DenseIndex.build(clustered(500, 0), kind=kind).save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    for mapped in (True, False):
        with pytest.raises(UserError, match=r"damaged or cut short|not an index written by lmlab"):
            DenseIndex.load(path, mapped=mapped)


@pytest.mark.parametrize("kind", KINDS)
def test_places_without_a_document_have_number_minus_one(kind: str):
    pytest.importorskip("faiss")
    vectors = np.array([[1, 0], [0, 2], [-1, 0]], dtype=np.float32)
    scores, numbers = DenseIndex.build(vectors, kind=kind).search(vectors[:1], 5)
    assert numbers.tolist() == [[0, 1, 2, -1, -1]]
    assert scores.tolist() == [[1, 0, -1, -np.inf, -np.inf]]
    none = DenseIndex.build(vectors, kind=kind).search(np.empty((0, 2), np.float32), 5)
    assert [part.shape for part in none] == [(0, 5), (0, 5)]


def test_batches_make_the_same_index():
    vectors = clustered(100, 0)
    index = DenseIndex.build(vectors[first : first + 30] for first in range(0, 100, 30))
    ours, theirs = index.search(vectors, 3), DenseIndex.build(vectors).search(vectors, 3)
    np.testing.assert_array_equal(ours[1], theirs[1])


def test_one_seed_makes_one_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    faiss = pytest.importorskip("faiss")
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)  # several build small worlds in an order of their own
    try:
        for kind in ("ivf", "hnsw"):
            for name, seed in (("a", 1), ("b", 1), ("c", 2)):
                DenseIndex.build(clustered(400, 0), kind=kind, seed=seed).save(tmp_path / name)
            first, same, other = ((tmp_path / name).read_bytes() for name in "abc")
            assert first == same != other
    finally:
        faiss.omp_set_num_threads(threads)


def test_nothing_of_the_callers_is_changed(monkeypatch: pytest.MonkeyPatch):
    faiss = pytest.importorskip("faiss")
    vectors = clustered(200, 0)
    before, threshold = vectors.copy(), faiss.cvar.distance_compute_blas_threshold
    index = DenseIndex.build(vectors, kind="hnsw")
    index.search(vectors[:1], 100)
    index.search(vectors[:100], 3)
    np.testing.assert_array_equal(vectors, before)
    assert faiss.cvar.distance_compute_blas_threshold == threshold


def test_many_questions_are_multiplied_as_matrices_and_few_are_not():
    faiss = pytest.importorskip("faiss")
    few = exact_search.MATRIX_QUERIES_PER_THREAD * faiss.omp_get_max_threads() - 1
    for questions, threshold in (
        (1, exact_search.FAISS_NEVER_MATRIX),
        (few, exact_search.FAISS_NEVER_MATRIX),
        (few + 1, exact_search.FAISS_ALWAYS_MATRIX),
    ):
        with exact_search.faiss_matrix_threshold(faiss, questions):
            assert faiss.cvar.distance_compute_blas_threshold == threshold


def test_without_faiss_flat_works_and_the_others_name_the_extra(without_faiss: None):
    vectors, queries = clustered(300, 0), clustered(4, 1)
    scores, numbers = DenseIndex.build(vectors).search(queries, 5)
    products = queries @ vectors.T
    np.testing.assert_array_equal(numbers, np.argsort(-products, axis=1)[:, :5])
    np.testing.assert_array_equal(scores, np.take_along_axis(products, numbers, 1))
    for kind in ("ivf", "hnsw"):
        with pytest.raises(UserError, match=r"kind .* needs FAISS.*lmlab\[retrieval\]"):
            DenseIndex.build(vectors, kind=kind)


@pytest.mark.parametrize("at_once", [1, 7, 10**6])
def test_numpy_takes_some_vectors_at_a_time(monkeypatch: pytest.MonkeyPatch, at_once: int):
    """Few whole numbers, so that many scores are equal: the lower number comes first."""
    monkeypatch.setattr(exact_search, "SCORE_CHUNK", at_once)
    random = np.random.default_rng(0)
    vectors = random.integers(-1, 2, (50, 3)).astype(np.float32)
    queries = random.integers(-1, 2, (6, 3)).astype(np.float32)
    scores, numbers = exact_search.top_inner_products_numpy(queries, vectors, 4)
    for row, query in enumerate(queries):
        products = (vectors @ query).tolist()
        wanted = sorted(range(50), key=lambda n: (-products[n], n))[:4]
        assert numbers[row].tolist() == wanted
        assert scores[row].tolist() == [products[n] for n in wanted]


def test_what_it_refuses(tmp_path: Path):
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
