"""Documents as a memory: rows, search, what is left out, editing, loading."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.retrieval.document_memory import DocumentMemory, evaluation_mode
from lmlab.retrieval.documents import Document, Documents, document_text

TEXTS = {"one": "a b", "two": "b", "three": "c a a b"}


class Letters:
    """A tokeniser of letters: a is 5, b is 6 …"""

    kind = "word"

    def token(self, id: int) -> str:
        return chr(id - 5 + ord("a"))

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") + 5 for letter in text.split()]


def counts(batch: Batch) -> torch.Tensor:
    """(M, 3) how often a, b and c stand in each row."""
    return torch.stack([(batch.tokens == token).sum(1) for token in (5, 6, 7)], 1).float()


@pytest.fixture
def memory() -> DocumentMemory:
    documents = Documents(Document(name=name, text=text) for name, text in TEXTS.items())
    made = DocumentMemory(documents, Vocabulary(size=8), width=3, longest=5)
    made.setup_tokenizer(Letters())
    made.embed(counts, rows=2)
    return made


def test_rows_stand_between_the_symbols_and_are_cut(memory: DocumentMemory):
    """Of five tokens two are symbols, so `c a a b` loses its b; the null document is empty."""
    batch = memory.batch(torch.tensor([2, 1, -1]))
    assert batch.tokens.tolist() == [[2, 7, 5, 5, 3], [2, 6, 3, 0, 0], [2, 3, 0, 0, 0]]
    assert batch.lengths.tolist() == [5, 3, 2]
    assert batch.rows.tolist() == [2, 1, -1]


def test_a_title_is_read_unless_the_text_begins_with_it():
    assert document_text(Document(name="1", title="dog", text="it barks")) == "dog : it barks"
    assert document_text(Document(name="1", title="dog", text="dog : it barks")) == "dog : it barks"
    assert document_text(Document(name="1", text="it barks")) == "it barks"


def test_the_best_by_inner_product_come_first(memory: DocumentMemory):
    """Counts of a, b, c are (1, 1, 0), (0, 1, 0), (2, 0, 1)."""
    assert memory.vectors.tolist() == [[1, 1, 0], [0, 1, 0], [2, 0, 1]]
    queries = torch.tensor([[1.0, 0, 0], [0.1, 1, 0]])  # scores 1, 0, 2 and 1.1, 1, 0.2
    assert memory.search(queries, 3).tolist() == [[2, 0, 1], [0, 1, 2]]
    assert memory.search(queries, 1).tolist() == [[2], [0]]
    assert memory.search(queries, 9).shape == (2, 3)


def test_what_is_left_out_is_not_found(memory: DocumentMemory):
    queries = torch.tensor([[1.0, 0, 0], [0.1, 1, 0]])
    without = torch.tensor([[2, -1], [0, 1]])
    assert memory.search(queries, 2, without=without).tolist() == [[0, 1], [2, -1]]


def many(kind: str, *, documents: int = 400, width: int = 8) -> DocumentMemory:
    """Random vectors of so many documents."""
    told = Documents(Document(name=str(number), text="a") for number in range(documents))
    made = DocumentMemory(told, Vocabulary(size=8), width=width, longest=5, kind=kind)
    made.setup_tokenizer(Letters())
    made.vectors = torch.randn(documents, width, generator=torch.Generator().manual_seed(0))
    return made


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_an_index_of_faiss_finds_what_it_says_of_what_all_products_find(kind: str):
    pytest.importorskip("faiss")
    queries = torch.randn(200, 8, generator=torch.Generator().manual_seed(1))
    scores = queries @ many("flat").vectors.T
    truth = scores.argsort(dim=1, descending=True)[:, :10]
    assert torch.equal(many("flat").search(queries, 10), truth)
    memory = many(kind)
    found = memory.search(queries, 10)
    here = (found[..., None] == truth[:, None]).any(-1).float().mean()
    assert memory.recall is not None and memory.recall >= 0.95
    assert here >= 0.9
    assert torch.equal(memory.search(queries, 10), found)
    # All documents are more than an index comes upon: then they are compared one by one.
    assert torch.equal(memory.search(queries[:2], 400), many("flat").search(queries[:2], 400))
    best = truth[:, :2]
    others = memory.search(queries, 5, without=best)
    assert not (others[..., None] == best[:, None]).any()
    assert (others >= 0).all()


def test_an_index_is_built_anew_where_vectors_change_and_kept_where_they_do_not():
    pytest.importorskip("faiss")
    memory = many("ivf")
    query = torch.randn(1, 8, generator=torch.Generator().manual_seed(2))
    memory.search(query, 1)
    first = memory.index()
    assert memory.index() is first
    memory.vectors[7] = 100 * query[0]  # in place
    assert memory.search(query, 1).tolist() == [[7]]
    assert memory.index() is not first
    memory.vectors = memory.vectors.flip(0)
    assert memory.search(query, 1).tolist() == [[392]]
    copied = deepcopy(memory)
    copied.vectors[392] = -copied.vectors[392]
    assert copied.search(query, 1).tolist() != [[392]]
    assert memory.search(query, 1).tolist() == [[392]]


def test_a_search_in_parts_is_the_same(memory: DocumentMemory, monkeypatch: pytest.MonkeyPatch):
    queries = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    without = torch.tensor([[number % 3] for number in range(7)])
    whole = memory.search(queries, 2, without=without)
    monkeypatch.setattr("lmlab.retrieval.document_memory.SEARCH_CHUNK", 6)
    assert torch.equal(memory.search(queries, 2, without=without), whole)


def test_an_edited_document_is_found_by_its_new_words(memory: DocumentMemory):
    before = memory.documents
    memory.replace(Document(name="one", text="c c c"), Letters(), counts)
    assert memory.batch(torch.tensor([0, 1])).tokens.tolist() == [[2, 7, 7, 7, 3], [2, 6, 3, 0, 0]]
    assert memory.vectors.tolist() == [[0, 0, 3], [0, 1, 0], [2, 0, 1]]
    assert memory.documents[0].text == "c c c"
    assert before[0].text == "a b", "the caller's documents stay"


def test_it_is_loaded_whatever_its_size(memory: DocumentMemory):
    fresh = DocumentMemory(memory.documents, Vocabulary(size=8), width=3, longest=5)
    assert len(fresh) == 0
    assert fresh.search(torch.zeros(2, 3), 4).shape == (2, 0)
    fresh.load_state_dict(memory.state_dict())
    assert len(fresh) == 3
    assert torch.equal(fresh.vectors, memory.vectors)
    assert torch.equal(fresh.batch(torch.arange(3)).tokens, memory.batch(torch.arange(3)).tokens)


def test_an_encoder_of_another_width_is_refused(memory: DocumentMemory):
    with pytest.raises(UserError, match="vectors of width 3, got 2 from the encoder"):
        memory.embed(lambda batch: counts(batch)[:, :2])


def test_progress_is_told(memory: DocumentMemory):
    told: list[tuple[int, int]] = []
    memory.embed(counts, rows=2, progress=lambda done, of: told.append((done, of)))
    assert told == [(2, 3), (3, 3)]


def test_a_module_rests_and_goes_on():
    module = nn.Dropout()
    with evaluation_mode(module):
        assert not module.training
    assert module.training
