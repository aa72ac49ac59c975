"""The index of a run's vectors is built once, and never searched where it is not theirs."""

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
    """A memory of 300 random vectors, as a run is loaded from a folder."""
    told = Documents(Document(name=str(number), text="a") for number in range(300))
    made = DocumentMemory(told, Vocabulary(size=8), width=8, longest=5, kind=kind)
    made.offsets = torch.zeros(301, dtype=torch.int64)
    made.vectors = torch.randn(300, 8, generator=torch.Generator().manual_seed(seed))
    made.cache_index(folder)
    return made


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of all indexes that are built from here on."""
    kinds: list[str] = []
    build = DenseIndex.build

    def counted(vectors, *, kind="flat", **words):
        kinds.append(kind)
        return build(vectors, kind=kind, **words)

    monkeypatch.setattr(DenseIndex, "build", counted)
    return kinds


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_it_is_built_once_and_finds_the_same_after_loading(
    kind: str, built: list[str], tmp_path: Path
):
    first = load(tmp_path, kind)
    found = first.search(QUERIES, 10)
    again = load(tmp_path, kind)
    assert torch.equal(again.search(QUERIES, 10), found)
    assert again.recall == first.recall is not None
    assert built == [kind]
    assert sorted(path.name for path in tmp_path.iterdir()) == [INDEX_FILE, INDEX_METADATA_FILE]


def cut_short(folder: Path) -> None:
    (folder / INDEX_FILE).write_bytes((folder / INDEX_FILE).read_bytes()[:-100])


def change_a_byte(folder: Path) -> None:
    content = bytearray((folder / INDEX_FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / INDEX_FILE).write_bytes(content)


def lose_what_tells_of_it(folder: Path) -> None:
    (folder / INDEX_METADATA_FILE).unlink()


def lose_the_index(folder: Path) -> None:
    (folder / INDEX_FILE).unlink()


def tell_nonsense(folder: Path) -> None:
    (folder / INDEX_METADATA_FILE).write_text("[1]", encoding="utf-8")


def keep_that_of_other_vectors(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    load(folder, seed=7).index()


@pytest.mark.parametrize(
    "spoil", [cut_short, change_a_byte, lose_what_tells_of_it, lose_the_index, tell_nonsense]
)
def test_what_is_damaged_is_told_and_built_anew(spoil: Callable[[Path], None], tmp_path: Path):
    expected = load(tmp_path).search(QUERIES, 10)
    spoil(tmp_path)
    with pytest.warns(UserWarning, match="damaged, truncated or missing; it was rebuilt"):
        assert torch.equal(load(tmp_path).search(QUERIES, 10), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(load(tmp_path).search(QUERIES, 10), expected)


def test_one_of_other_vectors_is_built_anew_without_a_word(tmp_path: Path):
    """Nothing is wrong: the training of the run has gone on since."""
    expected = load(tmp_path).search(QUERIES, 10)
    keep_that_of_other_vectors(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(load(tmp_path).search(QUERIES, 10), expected)


def test_one_of_another_kind_does_not_fit(built: list[str], tmp_path: Path):
    load(tmp_path, "ivf").index()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(tmp_path, "hnsw").index().kind == "hnsw"
    assert built == ["ivf", "hnsw"]


def test_where_all_vectors_are_compared_nothing_is_kept(tmp_path: Path):
    load(tmp_path, "flat").search(QUERIES, 10)
    assert not list(tmp_path.iterdir())


def test_of_vectors_that_have_changed_nothing_is_kept(tmp_path: Path):
    memory = load(tmp_path)
    memory.search(QUERIES, 10)
    told = (tmp_path / INDEX_METADATA_FILE).read_bytes()
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
    assert (tmp_path / INDEX_METADATA_FILE).read_bytes() == told
    assert json.loads(told)["kind"] == "hnsw"


def test_a_run_that_may_not_be_written_to_is_searched_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(self: DenseIndex, path: Path) -> None:
        raise UserError(f"{path} could not be written: choose a place that you may write to.")

    monkeypatch.setattr(DenseIndex, "save", refuse)
    with pytest.warns(UserWarning, match=r"rebuilt whenever this run is loaded: .*index\.faiss"):
        assert load(tmp_path).search(QUERIES, 10).shape == (20, 10)
    assert not any(tmp_path.iterdir())
