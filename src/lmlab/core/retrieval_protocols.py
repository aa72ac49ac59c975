"""Protocols of retrieval models: query embedding, retrieval, new documents or facts, linking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.entity_mentions import MentionLink

if TYPE_CHECKING:  # that module names the protocols of this one
    from lmlab.core.tokenizer_protocol import TokenizerProtocol


@runtime_checkable
class EncodeQueries(Protocol):
    """Query embedding: a question as one vector, in the space of `Encode`'s document vectors."""

    def encode_queries(self, batch: Batch) -> Tensor:
        """(B, L) a vector for each question; its inner product with a document's is the score."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RetrievedDocuments:
    """The top K retrieved documents for each of B questions, most probable first."""

    numbers: Tensor
    """(B, K) document indices; -1 is the null document."""
    log_probs: Tensor
    """(B, K) log p(document | question), normalised over these K."""

    def select(self, rows: Tensor) -> RetrievedDocuments:
        return RetrievedDocuments(numbers=self.numbers[rows], log_probs=self.log_probs[rows])

    def ranked(self) -> RetrievedDocuments:
        """Sorted by probability, highest first."""
        order = self.log_probs.argsort(dim=1, descending=True, stable=True)
        return RetrievedDocuments(
            numbers=self.numbers.gather(1, order), log_probs=self.log_probs.gather(1, order)
        )


@runtime_checkable
class Retrieve(Protocol):
    """Document retrieval for a text."""

    documents: Any
    """The document store: a `retrieval.documents.Documents`."""
    tokenizer: TokenizerProtocol | None
    """The tokenizer, once it was set."""

    def retrieve(self, batch: Batch, *, documents: int | None = None) -> RetrievedDocuments:
        """The most probable documents for each row; by default as many as in training."""


@runtime_checkable
class WithDocuments(Retrieve, Protocol):
    """Documents exchangeable after training; not listed on cards."""

    @property
    def max_document_length(self) -> int:
        """Maximum number of tokens of a document, special tokens included."""

    @property
    def index_recall(self) -> float | None:
        """Recall@10 of its approximate index, measured when it was built."""

    def with_documents(
        self, documents: Any, *, vectors: Tensor | None = None, index: Any = None
    ) -> Self:
        """The same system and weights with other documents.

        They are embedded by its own encoder unless `vectors` (N, width) from it are given, which
        may have a search `index`; the system itself is not changed.
        """


@runtime_checkable
class WithFacts(Protocol):
    """Facts exchangeable after training; not listed on cards."""

    def with_facts(self, edits: Sequence[tuple[str, str, str]], knowledge: Any = None) -> Self:
        """The same system and weights with other facts, then with edits applied."""


@runtime_checkable
class Link(Protocol):
    """Entity linking: mention detection in a text, and disambiguation by context."""

    knowledge: Any
    """The knowledge base of the entities: a `knowledge.knowledge.Knowledge`."""

    def link(self, batch: Batch) -> list[MentionLink]:
        """Every mention in the rows of a clean batch, sorted by row, first and last position.

        Mentions may overlap. The batch's entity annotations are ignored.
        """
