"""What all systems have in common whose documents can be exchanged after training."""

from __future__ import annotations

from typing import Self

from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.core.protocols import Pieces
from lmlab.core.system import System
from lmlab.retrieval.documents import Documents
from lmlab.retrieval.index import DenseIndex
from lmlab.retrieval.memory import DocumentMemory


class OverDocuments(System):
    """A system that looks things up in a memory of documents."""

    pieces: Pieces | None = None
    """Its tokeniser, once it was told."""

    @property
    def looked_up(self) -> DocumentMemory:
        """Where it looks."""
        raise TypeError(f"{type(self).__name__} does not tell where it looks documents up")

    @property
    def documents(self) -> Documents:
        """What is looked up."""
        return self.looked_up.documents

    @property
    def longest_document(self) -> int:
        """Tokens of a document that are read at most, its symbols counted."""
        return self.looked_up.longest

    @property
    def recall_of_index(self) -> float | None:
        """Share of the ten nearest documents that its index found when it was built."""
        return self.looked_up.recall

    def known_pieces(self) -> Pieces:
        """The tokeniser, or the error that tells that there is none."""
        if self.pieces is None:
            raise UserError("this system has not met its tokeniser yet; load it from a run.")
        return self.pieces

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
        other = self.with_memory(self.looked_up.of_other(documents, self.known_pieces()))
        if vectors is None:
            other.embed_documents()
        else:
            other.take_vectors(vectors, index)
        return other

    def with_memory(self, memory: DocumentMemory) -> Self:
        """The same system with another memory; this one stays as it is."""
        raise TypeError(f"{type(self).__name__} does not define with_memory")

    def embed_documents(self) -> None:
        """Let the vectors of all documents be those of its encoder as it is now."""
        raise TypeError(f"{type(self).__name__} does not define embed_documents")

    def take_vectors(self, vectors: Tensor, index: DenseIndex | None) -> None:
        """Vectors of all documents that its encoder made before, and what they are searched by."""
        self.looked_up.take(vectors, index)
