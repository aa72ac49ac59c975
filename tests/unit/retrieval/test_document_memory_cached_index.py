"""Cached FAISS index of a document memory: built once, and rebuilt when damaged or stale."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from copy import copy, deepcopy
from pathlib import Path

import pytest
import torch

from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.retrieval.dense_index import INDEX_FILE, INDEX_METADATA_FILE, DenseIndex
from lmlab.retrieval.document_memory import DocumentMemory
from lmlab.retrieval.documents import Document, Documents

pytest.importorskip("faiss")

QUERIES = torch.randn(20, 8, generator=torch.Generator().manual_seed(1))


def load(folder: Path, kind: str = "hnsw", seed: int = 0) -> DocumentMemory:
    """A memory of 300 random vectors, with its index cached in a folder."""
    documents = Documents(Document(name=str(number), text="a") for number in range(300))
    memory = DocumentMemory(
        documents, Vocabulary(size=8), width=8, max_document_length=5, kind=kind
    )
    memory.offsets = torch.zeros(301, dtype=torch.int64)
    memory.vectors = torch.randn(300, 8, generator=torch.Generator().manual_seed(seed))
    memory.cache_index(folder)
    return memory


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of all indexes built during the test."""
    kinds: list[str] = []
    build = DenseIndex.build

    def counted(vectors, *, kind="flat", **options):
        kinds.append(kind)
        return build(vectors, kind=kind, **options)

    monkeypatch.setattr(DenseIndex, "build", counted)
    return kinds


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_cached_index_is_built_once_and_gives_equal_results(
    kind: str, built: list[str], tmp_path: Path
):
    first = load(tmp_path, kind)
    numbers = first.search(QUERIES, 10)
    reloaded = load(tmp_path, kind)
    assert torch.equal(reloaded.search(QUERIES, 10), numbers)
    assert reloaded.recall == first.recall is not None
    assert built == [kind]
    assert sorted(path.name for path in tmp_path.iterdir()) == [INDEX_FILE, INDEX_METADATA_FILE]


def truncate_index(folder: Path) -> None:
    (folder / INDEX_FILE).write_bytes((folder / INDEX_FILE).read_bytes()[:-100])


def flip_a_bit(folder: Path) -> None:
    content = bytearray((folder / INDEX_FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / INDEX_FILE).write_bytes(content)


def delete_metadata(folder: Path) -> None:
    (folder / INDEX_METADATA_FILE).unlink()


def delete_index(folder: Path) -> None:
    (folder / INDEX_FILE).unlink()


def write_invalid_metadata(folder: Path) -> None:
    (folder / INDEX_METADATA_FILE).write_text("[1]", encoding="utf-8")


def store_index_of_other_vectors(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    load(folder, seed=7).index()


@pytest.mark.parametrize(
    "damage", [truncate_index, flip_a_bit, delete_metadata, delete_index, write_invalid_metadata]
)
def test_damaged_cached_index_is_rebuilt_with_a_warning(
    damage: Callable[[Path], None], tmp_path: Path
):
    expected = load(tmp_path).search(QUERIES, 10)
    damage(tmp_path)
    with pytest.warns(UserWarning, match="damaged, truncated or missing; it was rebuilt"):
        assert torch.equal(load(tmp_path).search(QUERIES, 10), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(load(tmp_path).search(QUERIES, 10), expected)


def test_stale_cached_index_is_rebuilt_without_a_warning(tmp_path: Path):
    """Nothing is damaged: training has continued since."""
    expected = load(tmp_path).search(QUERIES, 10)
    store_index_of_other_vectors(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(load(tmp_path).search(QUERIES, 10), expected)


def test_cached_index_of_another_kind_is_rebuilt(built: list[str], tmp_path: Path):
    load(tmp_path, "ivf").index()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(tmp_path, "hnsw").index().kind == "hnsw"
    assert built == ["ivf", "hnsw"]


def test_flat_index_is_not_cached(tmp_path: Path):
    load(tmp_path, "flat").search(QUERIES, 10)
    assert not list(tmp_path.iterdir())


def test_index_of_modified_vectors_is_not_cached(tmp_path: Path):
    memory = load(tmp_path)
    memory.search(QUERIES, 10)
    metadata = (tmp_path / INDEX_METADATA_FILE).read_bytes()
    edited = copy(memory)
    edited._buffers = dict(memory._buffers)
    edited.vectors = -memory.vectors
    copied = deepcopy(memory)
    copied.vectors[0] = 100 * QUERIES[0]
    changed = load(tmp_path)
    changed.vectors[0] = 100 * QUERIES[0]  # in place
    for other in (copied, changed):
        assert other.search(QUERIES[:1], 1).tolist() == [[0]]
    assert not torch.equal(edited.search(QUERIES, 10), memory.search(QUERIES, 10))
    assert (tmp_path / INDEX_METADATA_FILE).read_bytes() == metadata
    assert json.loads(metadata)["kind"] == "hnsw"


def test_read_only_run_is_searched_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(self: DenseIndex, path: Path) -> None:
        raise UserError(f"{path} could not be written: choose a place that you may write to.")

    monkeypatch.setattr(DenseIndex, "save", refuse)
    with pytest.warns(UserWarning, match=r"rebuilt whenever this run is loaded: .*index\.faiss"):
        assert load(tmp_path).search(QUERIES, 10).shape == (20, 10)
    assert not any(tmp_path.iterdir())
