"""Encoders of documents and of questions into one space, the documents' of which rests."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.frozen_system import FrozenSystem
from lmlab.core.protocols import Encode, EncodeQueries, require
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.retrieval.bm25 import BM25_K1, inverse_document_frequency, length_normalisation
from lmlab.retrieval.document_memory import DocumentMemory


class BiEncoder(nn.Module):
    """p(z | x) ∝ exp(d(z) · q(x)); d is fixed, so that documents are embedded once (RAG).

    q learns, unless it is told to rest.
    """

    width: int
    """Numbers in a vector."""
    frozen = False
    """Whether q is fixed as well."""

    def freeze(self) -> None:
        """Let q stay as it is, and so what is found for a question."""
        self.frozen = True
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> BiEncoder:
        """What rests is used as it will be: without dropout."""
        super().train(mode and not self.frozen)
        return self

    def setup_documents(self, memory: DocumentMemory) -> None:
        """Told the tokens of the documents before training; few need to know."""
        return

    def check_length(self, tokens: int) -> None:
        """A UserError where a document or a question of so many tokens is too long for it."""
        return

    def encode(self, batch: Batch) -> Tensor:
        """(B, width) d(z) of each document."""
        raise TypeError(f"{type(self).__name__} does not define encode")

    def encode_queries(self, batch: Batch) -> Tensor:
        """(B, width) q(x) of each question."""
        raise TypeError(f"{type(self).__name__} does not define encode_queries")


class RandomProjectionBM25(BiEncoder):
    """BM25 on random directions: words that a document and a question share, the rarer the more.

        d(z) = Σ_{w ∈ z} idf(w) tf(w) (k + 1) / (tf(w) + k (1 - b + b |z| / mean)) r_w
        q(x) = Σ_{w ∈ x} e_w, which starts from e_w = r_w

    r_w are random vectors of length one, so that at first d · q is the score of Robertson et al.
    1995, but for noise that falls with √width (Johnson and Lindenstrauss 1984). It stands in where
    no trained encoder is given. Only the questions' vectors e learn.
    """

    directions: Tensor
    """(V, width) r."""
    idf: Tensor
    """(V,) idf."""
    mean_length: Tensor
    """() words of a document."""

    def __init__(self, vocabulary: Vocabulary, width: int) -> None:
        super().__init__()
        self.width = width
        directions = nn.functional.normalize(torch.randn(vocabulary.size, width), dim=1)
        self.register_buffer("directions", directions)
        self.register_buffer("idf", torch.ones(vocabulary.size))
        self.register_buffer("mean_length", torch.ones(()))
        # Kept √width times as long: a step of Adam is of one size, and numbers of the order one
        # learn at the pace of the writer's.
        self.scale = width**-0.5
        self.questions = nn.Embedding(vocabulary.size, width, _weight=directions / self.scale)

    @torch.no_grad()
    def setup_documents(self, memory: DocumentMemory) -> None:
        """From them it learns idf, and how long a document is on average."""
        size, lengths = len(self.idf), memory.offsets.diff()
        document = torch.repeat_interleave(lengths)
        pairs = torch.unique(document * size + memory.tokens.long())
        having = torch.bincount(pairs % size, minlength=size).to(self.idf)
        self.idf = inverse_document_frequency(having, len(memory))
        self.mean_length = lengths.to(self.idf).mean().clamp(min=1)

    def encode(self, batch: Batch) -> Tensor:
        inner = batch.mask()
        inner[:, 0] = False
        inner.scatter_(1, (batch.lengths - 1)[:, None], False)
        counts = self.idf.new_zeros(len(batch), len(self.idf))
        counts.scatter_add_(1, batch.tokens, inner.to(counts))
        length = inner.sum(1, keepdim=True) / self.mean_length
        often = counts * (BM25_K1 + 1) / (counts + length_normalisation(length))
        return (often * self.idf) @ self.directions

    def encode_queries(self, batch: Batch) -> Tensor:
        vectors: Tensor = self.questions(batch.tokens)
        return (vectors * batch.mask()[..., None]).sum(1) * self.scale


class TrainedBiEncoder(BiEncoder):
    """A trained system that encodes documents and questions: DPR, say.

    Documents are read by a frozen copy of it; of the copy that reads questions only what they go
    through learns on.
    """

    def __init__(self, base: System) -> None:
        super().__init__()
        require(base, Encode, "looking documents up")
        require(base, EncodeQueries, "looking documents up")
        self.documents = FrozenSystem(base)
        self.questions = deepcopy(base)
        probe = Batch.collate([[base.vocabulary.bos]], base.vocabulary.pad)
        probe = probe.to(next(base.parameters()).device)
        vectors = self.encode_queries(probe)
        self.width = vectors.shape[-1]
        self._rest_unused(vectors)

    def _rest_unused(self, vectors: Tensor) -> None:
        """What a question does not go through gets no gradient, and need not wait for one."""
        learning = [each for each in self.questions.parameters() if each.requires_grad]
        found = torch.autograd.grad(vectors.sum(), learning, allow_unused=True)
        for parameter, gradient in zip(learning, found, strict=True):
            parameter.requires_grad_(gradient is not None)

    def check_length(self, tokens: int) -> None:
        self.questions.check_length(tokens)

    def encode(self, batch: Batch) -> Tensor:
        inner: Encode = self.documents.system  # type: ignore[assignment]
        return inner.encode(batch)

    def encode_queries(self, batch: Batch) -> Tensor:
        inner: EncodeQueries = self.questions  # type: ignore[assignment]
        return inner.encode_queries(batch)
