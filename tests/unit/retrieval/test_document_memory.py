"""Document memory: token rows, search, exclusion, editing and loading."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.vocabulary import Vocabulary
from lmlab.retrieval.document_memory import DocumentMemory
from lmlab.retrieval.documents import Document, Documents, document_text

TEXTS = {"one": "a b", "two": "b", "three": "c a a b"}


class LetterTokenizer:
    """A tokenizer of letters: a is 5, b is 6 …"""

    kind = "word"

    def token(self, id: int) -> str:
        return chr(id - 5 + ord("a"))

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") + 5 for letter in text.split()]


def count_letters(batch: Batch) -> torch.Tensor:
    """(M, 3) counts of a, b and c in each row."""
    return torch.stack([(batch.tokens == token).sum(1) for token in (5, 6, 7)], 1).float()


@pytest.fixture
def memory() -> DocumentMemory:
    documents = Documents(Document(name=name, text=text) for name, text in TEXTS.items())
    document_memory = DocumentMemory(documents, Vocabulary(size=8), width=3, max_document_length=5)
    document_memory.setup_tokenizer(LetterTokenizer())
    document_memory.embed(count_letters, rows=2)
    return document_memory


def test_document_rows_have_special_tokens_and_are_truncated(memory: DocumentMemory):
    """Two of five tokens are special, so `c a a b` loses its b; the null document is empty."""
    batch = memory.batch(torch.tensor([2, 1, -1]))
    assert batch.tokens.tolist() == [[2, 7, 5, 5, 3], [2, 6, 3, 0, 0], [2, 3, 0, 0, 0]]
    assert batch.lengths.tolist() == [5, 3, 2]
    assert batch.rows.tolist() == [2, 1, -1]


def test_title_is_prepended_unless_the_text_begins_with_it():
    assert document_text(Document(name="1", title="dog", text="it barks")) == "dog : it barks"
    assert document_text(Document(name="1", title="dog", text="dog : it barks")) == "dog : it barks"
    assert document_text(Document(name="1", text="it barks")) == "it barks"


def test_title_and_body_with_a_separator():
    """<s> title </s> body </s>, whether or not the text begins with the title; cut at seven."""
    documents = Documents(
        [
            Document(name="1", title="a b", text="c a"),
            Document(name="2", title="b", text="b : c a c c c"),
            Document(name="3", text="c"),
        ]
    )
    memory = DocumentMemory(
        documents, Vocabulary(size=8), width=3, max_document_length=7, title_separator=True
    )
    memory.setup_tokenizer(LetterTokenizer())
    rows = [[2, 5, 6, 3, 7, 5, 3], [2, 6, 3, 7, 5, 7, 3], [2, 7, 3, 0, 0, 0, 0]]
    assert memory.batch(torch.arange(3)).tokens.tolist() == rows
    memory.embed(count_letters)
    memory.replace(Document(name="3", title="c", text="a"), LetterTokenizer(), count_letters)
    assert memory.batch(torch.tensor([2])).tokens.tolist() == [[2, 7, 3, 5, 3]]
    other = memory.for_documents(documents, LetterTokenizer())
    assert other.batch(torch.arange(3)).tokens.tolist() == rows


def test_title_needs_a_separator_token():
    with pytest.raises(UserError, match="titles need an end token to separate them"):
        DocumentMemory(
            Documents([Document(name="1", text="a")]),
            Vocabulary(size=8, end=None),
            width=3,
            max_document_length=7,
            title_separator=True,
        )


def test_search_ranks_by_inner_product(memory: DocumentMemory):
    """Counts of a, b, c are (1, 1, 0), (0, 1, 0), (2, 0, 1)."""
    assert memory.vectors.tolist() == [[1, 1, 0], [0, 1, 0], [2, 0, 1]]
    queries = torch.tensor([[1.0, 0, 0], [0.1, 1, 0]])  # scores 1, 0, 2 and 1.1, 1, 0.2
    assert memory.search(queries, 3).tolist() == [[2, 0, 1], [0, 1, 2]]
    assert memory.search(queries, 1).tolist() == [[2], [0]]
    assert memory.search(queries, 9).shape == (2, 3)


def test_search_skips_excluded_documents(memory: DocumentMemory):
    queries = torch.tensor([[1.0, 0, 0], [0.1, 1, 0]])
    excluded = torch.tensor([[2, -1], [0, 1]])
    assert memory.search(queries, 2, excluded=excluded).tolist() == [[0, 1], [2, -1]]


def random_memory(kind: str, *, documents: int = 400, width: int = 8) -> DocumentMemory:
    """A memory of random document vectors."""
    texts = Documents(Document(name=str(number), text="a") for number in range(documents))
    memory = DocumentMemory(
        texts, Vocabulary(size=8), width=width, max_document_length=5, kind=kind
    )
    memory.setup_tokenizer(LetterTokenizer())
    memory.vectors = torch.randn(documents, width, generator=torch.Generator().manual_seed(0))
    return memory


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_faiss_index_reaches_its_reported_recall(kind: str):
    pytest.importorskip("faiss")
    queries = torch.randn(200, 8, generator=torch.Generator().manual_seed(1))
    scores = queries @ random_memory("flat").vectors.T
    truth = scores.argsort(dim=1, descending=True)[:, :10]
    assert torch.equal(random_memory("flat").search(queries, 10), truth)
    memory = random_memory(kind)
    numbers = memory.search(queries, 10)
    recall = (numbers[..., None] == truth[:, None]).any(-1).float().mean()
    assert memory.recall is not None and memory.recall >= 0.95
    assert recall >= 0.9
    assert torch.equal(memory.search(queries, 10), numbers)
    # An approximate index may not return all documents: then the search is exact.
    assert torch.equal(
        memory.search(queries[:2], 400), random_memory("flat").search(queries[:2], 400)
    )
    best = truth[:, :2]
    others = memory.search(queries, 5, excluded=best)
    assert not (others[..., None] == best[:, None]).any()
    assert (others >= 0).all()


def test_index_is_rebuilt_only_when_vectors_change():
    pytest.importorskip("faiss")
    memory = random_memory("ivf")
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


def test_chunked_search_equals_whole_search(
    memory: DocumentMemory, monkeypatch: pytest.MonkeyPatch
):
    queries = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    excluded = torch.tensor([[number % 3] for number in range(7)])
    whole = memory.search(queries, 2, excluded=excluded)
    monkeypatch.setattr("lmlab.retrieval.document_memory.SEARCH_CHUNK", 6)
    assert torch.equal(memory.search(queries, 2, excluded=excluded), whole)


def test_replaced_document_is_embedded_again(memory: DocumentMemory):
    before = memory.documents
    memory.replace(Document(name="one", text="c c c"), LetterTokenizer(), count_letters)
    assert memory.batch(torch.tensor([0, 1])).tokens.tolist() == [[2, 7, 7, 7, 3], [2, 6, 3, 0, 0]]
    assert memory.vectors.tolist() == [[0, 0, 3], [0, 1, 0], [2, 0, 1]]
    assert memory.documents[0].text == "c c c"
    assert before[0].text == "a b", "the caller's documents stay"


def test_load_state_dict_accepts_any_size(memory: DocumentMemory):
    fresh = DocumentMemory(memory.documents, Vocabulary(size=8), width=3, max_document_length=5)
    assert len(fresh) == 0
    assert fresh.search(torch.zeros(2, 3), 4).shape == (2, 0)
    fresh.load_state_dict(memory.state_dict())
    assert len(fresh) == 3
    assert torch.equal(fresh.vectors, memory.vectors)
    assert torch.equal(fresh.batch(torch.arange(3)).tokens, memory.batch(torch.arange(3)).tokens)


def test_encoder_of_wrong_width_is_refused(memory: DocumentMemory):
    with pytest.raises(UserError, match="vectors of width 3, got 2 from the encoder"):
        memory.embed(lambda batch: count_letters(batch)[:, :2])


def test_embedding_progress_is_reported(memory: DocumentMemory):
    reported: list[tuple[int, int]] = []
    memory.embed(count_letters, rows=2, progress=lambda done, of: reported.append((done, of)))
    assert reported == [(2, 3), (3, 3)]


def test_evaluation_mode_is_restored_on_exit():
    module = nn.Dropout()
    with evaluation_mode(module):
        assert not module.training
    assert module.training
