"""Base classes of retrieval-augmented models: a document store, and a trainable retriever."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Self

import torch
from torch import Tensor

from lmlab.core.answers import Evidence
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.retrieval_protocols import RetrievedDocuments
from lmlab.core.system import TrainableSystem
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.retrieval.dense_index import DenseIndex
from lmlab.retrieval.document_memory import NO_DOCUMENT, DocumentMemory
from lmlab.retrieval.documents import Document, Documents
from lmlab.retrieval.retriever import Retriever


class DocumentStoreModel(TrainableSystem):
    """A model that retrieves from a document store."""

    tokenizer: TokenizerProtocol | None = None
    """The tokenizer, once it was set."""

    @property
    @abstractmethod
    def document_memory(self) -> DocumentMemory:
        """The memory that is searched."""

    @property
    def documents(self) -> Documents:
        """The documents of the store."""
        return self.document_memory.documents

    @property
    def max_document_length(self) -> int:
        """Maximum tokens of a document, special tokens included; longer ones are truncated."""
        return self.document_memory.max_document_length

    @property
    def index_recall(self) -> float | None:
        """Recall@10 of the index against exact search, measured when it was built."""
        return self.document_memory.recall

    def require_tokenizer(self) -> TokenizerProtocol:
        """The tokenizer, or an error if it is not set."""
        if self.tokenizer is None:
            raise UserError("this system has no tokenizer yet; load it from a run.")
        return self.tokenizer

    def _evidence(self, number: int, probability: float) -> Evidence:
        if number == NO_DOCUMENT:
            return Evidence(name="", text="no document", probability=probability)
        document = self.documents[number]
        return Evidence(name=document.name, text=document.text, probability=probability)

    def with_documents(
        self,
        documents: Documents,
        *,
        vectors: Tensor | None = None,
        index: DenseIndex | None = None,
    ) -> Self:
        """The same model and weights with another document store.

        `vectors` (N, width): precomputed embeddings by the model's own encoder; `index`: their
        search index, if not exhaustive search.
        """
        other = self.with_memory(
            self.document_memory.for_documents(documents, self.require_tokenizer())
        )
        if vectors is None:
            other.embed_documents()
        else:
            other.set_document_vectors(vectors, index)
        return other

    @abstractmethod
    def with_memory(self, memory: DocumentMemory) -> Self:
        """The same model with another memory; this one is unchanged."""

    @abstractmethod
    def embed_documents(self) -> None:
        """Recompute the vectors of all documents with the current encoder."""

    def set_document_vectors(self, vectors: Tensor, index: DenseIndex | None) -> None:
        """Set precomputed vectors of all documents, and their search index."""
        self.document_memory.set_vectors(vectors, index)


class RetrieverModel(DocumentStoreModel):
    """A model whose retriever is trained jointly with it."""

    @property
    @abstractmethod
    def retriever(self) -> Retriever: ...

    @property
    def document_memory(self) -> DocumentMemory:
        return self.retriever.memory

    def begin_step(self, step: int) -> None:
        super().begin_step(step)
        self.retriever.begin_step(step)

    @contextmanager
    def refreshed(self) -> Iterator[None]:
        with self.retriever.refreshed():
            yield

    def setup_tokenizer(self, tokenizer: TokenizerProtocol) -> None:
        """Tokenise the documents; the index is empty until training begins.

        Done once, with the first tokenizer given: a loaded index is retained.
        """
        if self.tokenizer is None:
            self.tokenizer = tokenizer
            self.retriever.memory.setup_tokenizer(tokenizer)

    def encode(self, batch: Batch) -> Tensor:
        """(B, width) document embeddings."""
        vectors: Tensor = self.retriever.documents(batch)
        return vectors

    def encode_queries(self, batch: Batch) -> Tensor:
        """(B, width) question embeddings."""
        vectors: Tensor = self.retriever.questions(batch)
        return vectors

    def retrieve(self, batch: Batch, *, documents: int | None = None) -> RetrievedDocuments:
        """The documents retrieved for each text, the null document included, best first."""
        return self.retriever.find(batch, documents=documents).ranked()

    def evidence(self, retrieved: RetrievedDocuments) -> list[tuple[Evidence, ...]]:
        """The documents retrieved for each question with p(z | x), the most probable first."""
        ranked = retrieved.ranked()
        rows = zip(ranked.numbers.tolist(), ranked.log_probs.exp().tolist(), strict=True)
        return [
            tuple(
                self._evidence(number, probability)
                for number, probability in zip(numbers, probabilities, strict=True)
                if probability > 0
            )
            for numbers, probabilities in rows
        ]

    def with_memory(self, memory: DocumentMemory) -> Self:
        """It has weights of its own."""
        tokenizer, old_memory = self.require_tokenizer(), self.document_memory
        return deepcopy(self, {id(tokenizer): tokenizer, id(old_memory): memory})

    def embed_documents(self) -> None:
        self.retriever.embed()

    def with_document(self, document: Document) -> Self:
        """The same model with one document replaced, matched by name: an edited fact.

        Nothing is trained; only this document is embedded again.
        """
        tokenizer = self.require_tokenizer()
        other = deepcopy(self, {id(tokenizer): tokenizer, id(self.documents): self.documents})
        was_training = other.training
        other.eval()
        other.retriever.memory.replace(document, tokenizer, other.encode)
        other.train(was_training)
        return other


def scatter_by_document(numbers: Tensor, values: Tensor, documents: Sequence[int]) -> Tensor:
    """(B, D, T) values (B, K, T) of the documents `numbers` (B, K), in the column of each."""
    column_of = {number: column for column, number in enumerate(documents)}
    columns = torch.tensor([[column_of[n] for n in row] for row in numbers.tolist()])
    columns = columns.to(values.device)[..., None].expand_as(values)
    return values.new_zeros(len(values), len(documents), values.shape[2]).scatter(
        1, columns, values
    )
