"""What systems with a retriever of their own have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Self

import torch
from torch import Tensor

from lmlab.core.answers import Evidence
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.protocols import Pieces, Retrieved
from lmlab.core.system import System
from lmlab.retrieval.documents import Document, Documents
from lmlab.retrieval.index import DenseIndex
from lmlab.retrieval.memory import NO_DOCUMENT
from lmlab.retrieval.retriever import Retriever


class LookingUp(System):
    """A system that finds documents by a retriever which is trained with it."""

    pieces: Pieces | None = None
    """Its tokeniser, once it was told."""

    @property
    def retriever(self) -> Retriever:
        raise TypeError(f"{type(self).__name__} does not tell its retriever")

    @property
    def documents(self) -> Documents:
        """What is looked up."""
        return self.retriever.memory.documents

    @property
    def longest_document(self) -> int:
        """Tokens of a document that are read at most, its symbols counted."""
        return self.retriever.memory.longest

    @property
    def recall_of_index(self) -> float | None:
        """Share of the ten nearest documents that its index found when it was built."""
        return self.retriever.memory.recall

    def begin_step(self, step: int) -> None:
        super().begin_step(step)
        self.retriever.begin_step(step)

    @contextmanager
    def settled(self) -> Iterator[None]:
        with self.retriever.settled():
            yield

    def meet_tokenizer(self, tokenizer: Pieces) -> None:
        """Documents are tokens from here on; the index is empty until training begins.

        They are read once, with the tokeniser that is told first: an index that was loaded stays.
        """
        if self.pieces is None:
            self.pieces = tokenizer
            self.retriever.memory.meet_tokenizer(tokenizer)

    def known_pieces(self) -> Pieces:
        """The tokeniser, or the error that tells that there is none."""
        if self.pieces is None:
            raise UserError("this system has not met its tokeniser yet; load it from a run.")
        return self.pieces

    def encode(self, batch: Batch) -> Tensor:
        """(B, width) the vectors of documents."""
        vectors: Tensor = self.retriever.documents(batch)
        return vectors

    def encode_queries(self, batch: Batch) -> Tensor:
        """(B, width) the vectors of questions."""
        vectors: Tensor = self.retriever.questions(batch)
        return vectors

    def retrieve(self, batch: Batch, *, documents: int | None = None) -> Retrieved:
        """The documents found for each text, the null one among them, the likeliest first."""
        found = self.retriever.find(batch, documents=documents)
        order = found.log_probs.argsort(dim=1, descending=True, stable=True)
        return Retrieved(
            numbers=found.numbers.gather(1, order), log_probs=found.log_probs.gather(1, order)
        )

    @torch.no_grad()
    def evidence(self, questions: Batch) -> list[tuple[Evidence, ...]]:
        """The documents found for each question with p(z | x), the surest first."""
        found = self.retrieve(questions)
        rows = zip(found.numbers.tolist(), found.log_probs.exp().tolist(), strict=True)
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
        pieces, before = self.known_pieces(), self.retriever.memory
        memory = before.of_other(documents, pieces)
        other = deepcopy(self, {id(pieces): pieces, id(before): memory})
        if vectors is None:
            other.retriever.embed()
        else:
            memory.take(vectors, index)
        return other

    def with_document(self, document: Document) -> Self:
        """The same system with one document in the place of that of its name: an edited fact.

        Nothing is trained; only this document is embedded anew.
        """
        pieces = self.known_pieces()
        other = deepcopy(self, {id(pieces): pieces, id(self.documents): self.documents})
        was_training = other.training
        other.eval()
        other.retriever.memory.replace(document, pieces, other.encode)
        other.train(was_training)
        return other
