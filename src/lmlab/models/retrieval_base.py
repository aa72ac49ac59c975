"""What systems with a retriever of their own have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Self

from torch import Tensor

from lmlab.core.answers import Evidence
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.protocols import RetrievedDocuments, TokenizerProtocol
from lmlab.core.system import System
from lmlab.retrieval.dense_index import DenseIndex
from lmlab.retrieval.document_memory import (
    NO_DOCUMENT,
    DocumentMemory,
)
from lmlab.retrieval.documents import Document, Documents
from lmlab.retrieval.retriever import Retriever


class DocumentStoreModel(System):
    """A system that looks things up in a memory of documents."""

    tokenizer: TokenizerProtocol | None = None
    """Its tokeniser, once it was told."""

    @property
    def document_memory(self) -> DocumentMemory:
        """Where it looks."""
        raise TypeError(f"{type(self).__name__} does not tell where it looks documents up")

    @property
    def documents(self) -> Documents:
        """What is looked up."""
        return self.document_memory.documents

    @property
    def max_document_length(self) -> int:
        """Tokens of a document that are read at most, its symbols counted."""
        return self.document_memory.max_document_length

    @property
    def index_recall(self) -> float | None:
        """Share of the ten nearest documents that its index found when it was built."""
        return self.document_memory.recall

    def require_tokenizer(self) -> TokenizerProtocol:
        """The tokeniser, or the error that tells that there is none."""
        if self.tokenizer is None:
            raise UserError("this system has not met its tokeniser yet; load it from a run.")
        return self.tokenizer

    def with_documents(
        self,
        documents: Documents,
        *,
        vectors: Tensor | None = None,
        index: DenseIndex | None = None,
    ) -> Self:
        """The same system, weights and all, that looks things up in other documents.

        `vectors` (N, width) are those of its own encoder, where somebody has them already, and
        `index` what they are searched by, where that is not each of them.
        """
        other = self.with_memory(
            self.document_memory.for_documents(documents, self.require_tokenizer())
        )
        if vectors is None:
            other.embed_documents()
        else:
            other.set_document_vectors(vectors, index)
        return other

    def with_memory(self, memory: DocumentMemory) -> Self:
        """The same system with another memory; this one stays as it is."""
        raise TypeError(f"{type(self).__name__} does not define with_memory")

    def embed_documents(self) -> None:
        """Let the vectors of all documents be those of its encoder as it is now."""
        raise TypeError(f"{type(self).__name__} does not define embed_documents")

    def set_document_vectors(self, vectors: Tensor, index: DenseIndex | None) -> None:
        """Vectors of all documents that its encoder made before, and what they are searched by."""
        self.document_memory.set_vectors(vectors, index)


class RetrieverModel(DocumentStoreModel):
    """A system that finds documents by a retriever which is trained with it."""

    @property
    def retriever(self) -> Retriever:
        raise TypeError(f"{type(self).__name__} does not tell its retriever")

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
        """Documents are tokens from here on; the index is empty until training begins.

        They are read once, with the tokeniser that is told first: an index that was loaded stays.
        """
        if self.tokenizer is None:
            self.tokenizer = tokenizer
            self.retriever.memory.setup_tokenizer(tokenizer)

    def encode(self, batch: Batch) -> Tensor:
        """(B, width) the vectors of documents."""
        vectors: Tensor = self.retriever.documents(batch)
        return vectors

    def encode_queries(self, batch: Batch) -> Tensor:
        """(B, width) the vectors of questions."""
        vectors: Tensor = self.retriever.questions(batch)
        return vectors

    def retrieve(self, batch: Batch, *, documents: int | None = None) -> RetrievedDocuments:
        """The documents found for each text, the null one among them, the likeliest first."""
        return self.retriever.find(batch, documents=documents).ranked()

    def evidence(self, retrieved: RetrievedDocuments) -> list[tuple[Evidence, ...]]:
        """The documents retrieved for each question with p(z | x), the most probable first."""
        ranked = retrieved.ranked()
        rows = zip(ranked.numbers.tolist(), ranked.log_probs.exp().tolist(), strict=True)
        return [
            tuple(
                self._evidence(number, probability)
                for number, probability in zip(numbers, shares, strict=True)
                if probability > 0
            )
            for numbers, shares in rows
        ]

    def _evidence(self, number: int, probability: float) -> Evidence:
        if number == NO_DOCUMENT:
            return Evidence(name="", text="no document", probability=probability)
        document = self.documents[number]
        return Evidence(name=document.name, text=document.text, probability=probability)

    def with_memory(self, memory: DocumentMemory) -> Self:
        """It has weights of its own."""
        pieces, before = self.require_tokenizer(), self.document_memory
        return deepcopy(self, {id(pieces): pieces, id(before): memory})

    def embed_documents(self) -> None:
        self.retriever.embed()

    def with_document(self, document: Document) -> Self:
        """The same system with one document in the place of that of its name: an edited fact.

        Nothing is trained; only this document is embedded anew.
        """
        pieces = self.require_tokenizer()
        other = deepcopy(self, {id(pieces): pieces, id(self.documents): self.documents})
        was_training = other.training
        other.eval()
        other.retriever.memory.replace(document, pieces, other.encode)
        other.train(was_training)
        return other
