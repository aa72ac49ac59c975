"""Bi-encoders with frozen documents: a trained encoder (DPR, RAG), or BM25 by random projection."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy

import torch
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.protocols import Encode, require
from lmlab.core.retrieval_protocols import EncodeQueries
from lmlab.core.system import FrozenSystem, System
from lmlab.core.vocabulary import Vocabulary
from lmlab.retrieval.bm25 import BM25_K1, inverse_document_frequency, length_normalisation
from lmlab.retrieval.document_memory import DocumentMemory


class BiEncoder(nn.Module, ABC):
    """Bi-encoder: p(z | x) ∝ exp(d(z) · q(x)); d is fixed, so documents are embedded once.

    Lewis et al. 2020 (RAG). q is trained unless frozen.
    """

    width: int
    """Vector dimension."""
    frozen = False
    """Whether q is fixed as well."""

    def freeze(self) -> None:
        """Freeze q, and so the retrieved documents."""
        self.frozen = True
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> BiEncoder:
        """Frozen parts stay in evaluation mode: without dropout."""
        super().train(mode and not self.frozen)
        return self

    def setup_documents(self, memory: DocumentMemory) -> None:
        """Receive the document tokens before training; few encoders need them."""
        return

    def check_length(self, tokens: int) -> None:
        """Raise a UserError if a document or query of so many tokens is too long."""
        return

    @abstractmethod
    def encode(self, batch: Batch) -> Tensor:
        """(B, width) d(z) of each document."""

    @abstractmethod
    def encode_queries(self, batch: Batch) -> Tensor:
        """(B, width) q(x) of each query."""


class RandomProjectionBM25(BiEncoder):
    """BM25 by random projection: shared words of document and query, weighted by rarity.

        d(z) = Σ_{w ∈ z} idf(w) tf(w) (k + 1) / (tf(w) + k (1 - b + b |z| / mean)) r_w
        q(x) = Σ_{w ∈ x} e_w, initialised to e_w = r_w

    r_w are random unit vectors, so that initially d · q is the BM25 score (Robertson et al. 1995)
    up to noise that falls with √width (Johnson and Lindenstrauss 1984). The default without a
    trained encoder. Only the query vectors e are trained.
    """

    directions: Tensor
    """(V, width) r."""
    idf: Tensor
    """(V,) idf."""
    mean_length: Tensor
    """() mean words per document."""

    def __init__(self, vocabulary: Vocabulary, width: int) -> None:
        super().__init__()
        self.width = width
        directions = nn.functional.normalize(torch.randn(vocabulary.size, width), dim=1)
        self.register_buffer("directions", directions)
        self.register_buffer("idf", torch.ones(vocabulary.size))
        self.register_buffer("mean_length", torch.ones(()))
        # Scaled up by √width: Adam's step size is fixed, so values of order one learn as fast as
        # the generator's weights.
        self.scale = width**-0.5
        self.questions = nn.Embedding(vocabulary.size, width, _weight=directions / self.scale)

    @torch.no_grad()
    def setup_documents(self, memory: DocumentMemory) -> None:
        """Estimate idf and the mean document length."""
        size, lengths = len(self.idf), memory.offsets.diff()
        document = torch.repeat_interleave(lengths)
        pairs = torch.unique(document * size + memory.tokens.long())
        document_frequencies = torch.bincount(pairs % size, minlength=size).to(self.idf)
        self.idf = inverse_document_frequency(document_frequencies, len(memory))
        self.mean_length = lengths.to(self.idf).mean().clamp(min=1)

    def encode(self, batch: Batch) -> Tensor:
        inner = batch.mask()
        inner[:, 0] = False
        inner.scatter_(1, (batch.lengths - 1)[:, None], False)
        counts = self.idf.new_zeros(len(batch), len(self.idf))
        counts.scatter_add_(1, batch.tokens, inner.to(counts))
        length = inner.sum(1, keepdim=True) / self.mean_length
        term_weights = counts * (BM25_K1 + 1) / (counts + length_normalisation(length))
        return (term_weights * self.idf) @ self.directions

    def encode_queries(self, batch: Batch) -> Tensor:
        vectors: Tensor = self.questions(batch.tokens)
        pooled: Tensor = (vectors * batch.mask()[..., None]).sum(1) * self.scale
        return pooled


class TrainedBiEncoder(BiEncoder):
    """A trained encoder of documents and queries, such as DPR.

    Documents are encoded by a frozen copy; in the query copy only the parameters that queries use
    are trained.
    """

    def __init__(self, base: System) -> None:
        super().__init__()
        require(base, Encode, "document retrieval")
        require(base, EncodeQueries, "document retrieval")
        self.documents = FrozenSystem(base)
        self.questions = deepcopy(base)
        probe = Batch.collate([[base.vocabulary.bos]], base.vocabulary.pad)
        probe = probe.to(next(base.parameters()).device)
        vectors = self.encode_queries(probe)
        self.width = vectors.shape[-1]
        self._freeze_unused(vectors)

    def _freeze_unused(self, vectors: Tensor) -> None:
        """Freeze parameters that queries do not use: they get no gradient."""
        trainable = [p for p in self.questions.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(vectors.sum(), trainable, allow_unused=True)
        for parameter, gradient in zip(trainable, gradients, strict=True):
            parameter.requires_grad_(gradient is not None)

    def check_length(self, tokens: int) -> None:
        self.questions.check_length(tokens)

    def encode(self, batch: Batch) -> Tensor:
        inner: Encode = self.documents.system  # type: ignore[assignment]
        return inner.encode(batch)

    def encode_queries(self, batch: Batch) -> Tensor:
        inner: EncodeQueries = self.questions  # type: ignore[assignment]
        return inner.encode_queries(batch)
