"""Document memory of a model: tokens, embeddings and inner product search of its documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.special_tokens import add_special_tokens
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.masking.whole_word_masking import WordUnits
from lmlab.retrieval.dense_index import CachedIndex, DenseIndex
from lmlab.retrieval.documents import Document, Documents, document_text, title_and_body
from lmlab.retrieval.index_options import IndexKind

NO_DOCUMENT = -1
"""Id of the null document, which is empty."""
SEARCH_CHUNK = 2**24
"""Query-document scores held in memory at once during a search."""

EncodeBatch = Callable[[Batch], Tensor]
"""Texts to vectors, (M, width)."""


class DocumentMemory(nn.Module):
    """N documents retrieved by inner product (Guu et al. 2020, Lewis et al. 2020).

        retrieve(q) = the k documents z with the largest q · vectors[z]

    Tokens and vectors are buffers, so that a checkpoint holds the index used in training: between
    two refreshes it is older than the encoder. Before the tokenizer is set there are no documents.
    Cost of a search: B · N · width, or less by an approximate FAISS index (`kind`); memory: N ·
    width numbers and all tokens.
    """

    tokens: Tensor
    """(all tokens,) of the documents concatenated, without start and end tokens."""
    offsets: Tensor
    """(N + 1,) start of each document."""
    vectors: Tensor
    """(N, width) zero until embedded."""
    pending_vectors: Tensor
    """(N, width) vectors of the next refresh, (0, width) if none is pending."""
    truncated_tokens: Tensor
    """(all tokens,) truncated from the documents, recomputed from their texts."""
    truncated_offsets: Tensor
    """(N + 1,) start of each document's truncated part."""

    def __init__(
        self,
        documents: Documents,
        vocabulary: Vocabulary,
        *,
        width: int,
        max_document_length: int,
        kind: IndexKind = "flat",
        title_separator: bool = False,
    ) -> None:
        """`max_document_length`: in tokens, <s> and </s> included; the rest is truncated.

        `title_separator`: a document is `title </s> body` (Guu et al. 2020), else `title : body`.
        `kind`: flat is exhaustive; ivf and hnsw are built when a search finds the vectors changed.
        """
        super().__init__()
        assert max_document_length > 2, "a document has tokens between <s> and </s>"
        if title_separator and vocabulary.end is None:
            raise UserError(
                "titles need an end token to separate them, and the tokenizer has neither </s> nor "
                "[SEP]; add one to its tokenizer.json, or use --set title_separator=false."
            )
        self.title_separator = title_separator
        self.documents = documents
        self.vocabulary = vocabulary
        self.width = width
        self.max_document_length = max_document_length
        self.words = WordUnits(vocabulary)
        self.kind: IndexKind = kind
        self._index: tuple[Tensor, int, DenseIndex] | None = None
        """The indexed vectors, their version at that time, and the index."""
        self._kept: CachedIndex | None = None
        self.register_buffer("tokens", torch.zeros(0, dtype=torch.int32))
        self.register_buffer("offsets", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("vectors", torch.zeros(0, width))
        self.register_buffer("pending_vectors", torch.zeros(0, width))
        self.register_buffer(
            "truncated_tokens", torch.zeros(0, dtype=torch.int32), persistent=False
        )
        self.register_buffer(
            "truncated_offsets", torch.zeros(1, dtype=torch.int64), persistent=False
        )

    def __len__(self) -> int:
        """Number of retrievable documents."""
        return len(self.offsets) - 1

    def setup_tokenizer(self, tokenizer: TokenizerProtocol) -> None:
        """Tokenise all documents; their vectors are zero until `embed`."""
        self.words.setup_tokenizer(tokenizer)
        encoded = [self._encode(document, tokenizer) for document in self.documents]
        self.tokens, self.offsets = self._concatenate(
            [tokens[: self.max_document_length - 2] for tokens in encoded]
        )
        truncated = self._concatenate(
            [tokens[self.max_document_length - 2 :] for tokens in encoded]
        )
        self.truncated_tokens, self.truncated_offsets = truncated
        self.vectors = self.vectors.new_zeros(len(encoded), self.width)

    def for_documents(self, documents: Documents, tokenizer: TokenizerProtocol) -> DocumentMemory:
        """A memory like this one for other documents, not embedded yet."""
        other = DocumentMemory(
            documents,
            self.vocabulary,
            width=self.width,
            max_document_length=self.max_document_length,
            kind=self.kind,
            title_separator=self.title_separator,
        ).to(self.vectors)
        other.setup_tokenizer(tokenizer)
        return other

    def shallow_copy(self) -> DocumentMemory:
        """A memory with the same tensors, whose documents can be replaced without changing this."""
        other = copy(self)
        # Buffers are held in a dictionary, which a shallow copy would share.
        other._buffers = dict(self._buffers)
        return other

    def set_vectors(self, vectors: Tensor, index: DenseIndex | None = None) -> None:
        """Set precomputed vectors (N, width), and their index if there is one."""
        self.vectors = vectors.to(self.vectors)
        if index is not None:
            self.use_index(index)

    def document_tokens(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """(M, L) tokens of documents (M,) without start and end, and (M,) their lengths.

        The null document is empty.
        """
        return self._gather(numbers, self.tokens, self.offsets)

    def untruncated_tokens(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """(M, L) and (M,) the same including the truncated part, which no encoder sees."""
        head, lengths = self.document_tokens(numbers)
        tail, extra = self._gather(numbers, self.truncated_tokens, self.truncated_offsets)
        index = torch.arange(head.shape[1] + tail.shape[1], device=numbers.device)
        ends, total = lengths[:, None], (lengths + extra)[:, None]
        tokens = head.new_full((len(numbers), len(index)), self.vocabulary.pad)
        tokens[index < ends] = head[index[: head.shape[1]] < ends]
        tokens[(index >= ends) & (index < total)] = tail[index[: tail.shape[1]] < extra[:, None]]
        return tokens, lengths + extra

    def word_starts(self, numbers: Tensor) -> Tensor:
        """(M, L + 1) bool: word starts in untruncated documents (M,); true after the end.

        So a word ends before each of these positions, and a truncated word has no end.
        """
        tokens, lengths = self.untruncated_tokens(numbers)
        batch = Batch(tokens=tokens, lengths=lengths, rows=numbers)
        mask = torch.arange(tokens.shape[1], device=numbers.device) < lengths[:, None]
        return nn.functional.pad(self.words.starts(batch, mask) | ~mask, (0, 1), value=True)

    def _gather(self, numbers: Tensor, tokens: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        index = numbers.clamp(min=0)
        # Before the tokenizer is set there is one offset, and only the null document.
        last = offsets[(index + 1).clamp(max=len(offsets) - 1)]
        first = offsets[index.clamp(max=len(offsets) - 1)]
        lengths = (last - first) * (numbers >= 0)
        position = torch.arange(int(lengths.max()) if len(lengths) else 0, device=numbers.device)
        mask = position < lengths[:, None]
        token_index = torch.where(mask, first[:, None] + position, 0)
        # A memory of null documents only has no tokens to index.
        selected = tokens[token_index] if len(tokens) else torch.zeros_like(token_index)
        return torch.where(mask, selected.long(), self.vocabulary.pad), lengths

    def batch(self, numbers: Tensor) -> Batch:
        """Documents (M,) as rows `<s> … </s>`; the null document has special tokens only."""
        tokens, lengths = self.document_tokens(numbers)
        return add_special_tokens(tokens, lengths, self.vocabulary, rows=numbers)

    def embed(
        self,
        encode: EncodeBatch,
        *,
        rows: int = 256,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Set the vectors of all documents by `encode`: see `embed_all`."""
        self.vectors = self.embed_all(encode, rows=rows, progress=progress)

    @torch.no_grad()
    def embed_all(
        self,
        encode: EncodeBatch,
        *,
        rows: int = 256,
        progress: Callable[[int, int], None] | None = None,
    ) -> Tensor:
        """(N, width) vectors of all documents by `encode`, in batches of `rows` of similar length.

        `progress` receives the number done and the total.
        """
        order = (self.offsets[1:] - self.offsets[:-1]).argsort(stable=True)
        vectors = torch.zeros_like(self.vectors)
        for first in range(0, len(order), rows):
            numbers = order[first : first + rows]
            vectors[numbers] = self._check_width(encode(self.batch(numbers))).to(vectors.dtype)
            if progress is not None:
                progress(min(first + rows, len(order)), len(order))
        return vectors

    def adopt_pending_vectors(self) -> None:
        """Replace the searched vectors by the pending ones, if any."""
        if len(self.pending_vectors):
            self.vectors, self.pending_vectors = (
                self.pending_vectors,
                self.pending_vectors.new_zeros(0, self.width),
            )

    @torch.no_grad()
    def search(self, queries: Tensor, k: int, *, excluded: Tensor | None = None) -> Tensor:
        """(B, K) ids of the best documents for queries (B, width), best first.

        K is k, or the number of documents if smaller. `excluded` (B, E): documents to exclude per
        row, -1 for none; where too few are left, the row is filled with the null document.
        """
        limit = min(k, len(self))
        if limit == 0:
            return torch.zeros(len(queries), 0, dtype=torch.int64, device=queries.device)
        if self.kind != "flat":
            return self._index_search(queries, limit, excluded)
        return self._exhaustive_search(queries, limit, excluded)

    def _exhaustive_search(self, queries: Tensor, k: int, excluded: Tensor | None) -> Tensor:
        size = max(1, SEARCH_CHUNK // len(self))
        parts = []
        for first in range(0, len(queries), size):
            chunk_excluded = None if excluded is None else excluded[first : first + size]
            parts.append(self._top_k(queries[first : first + size], k, chunk_excluded))
        return torch.cat(parts) if parts else queries.new_zeros(0, k, dtype=torch.int64)

    def _top_k(self, queries: Tensor, k: int, excluded: Tensor | None) -> Tensor:
        scores = queries.to(self.vectors.dtype) @ self.vectors.T
        if excluded is not None:
            row = torch.arange(len(scores), device=scores.device)[:, None].expand_as(excluded)
            scores[row[excluded >= 0], excluded[excluded >= 0]] = -torch.inf
        best = scores.topk(k, dim=1)
        return best.indices.masked_fill(best.values == -torch.inf, NO_DOCUMENT)

    def _index_search(self, queries: Tensor, k: int, excluded: Tensor | None) -> Tensor:
        """The same by the approximate index; exhaustive where it returns too few."""
        if not len(queries):
            return queries.new_zeros(0, k, dtype=torch.int64)
        extra = 0 if excluded is None else excluded.shape[1]
        array = queries.detach().float().cpu().numpy()
        _, numbers = self.index().search(array, min(k + extra, len(self)))
        best = torch.from_numpy(numbers).to(queries.device)
        if excluded is not None:
            is_excluded = (best[..., None] == excluded[:, None]).any(-1)
            order = is_excluded.long().argsort(dim=1, stable=True)
            best = best.masked_fill(is_excluded, NO_DOCUMENT).gather(1, order)[:, :k]
        incomplete = (best == NO_DOCUMENT).any(1)
        if bool(incomplete.any()):
            row_excluded = None if excluded is None else excluded[incomplete]
            best[incomplete] = self._exhaustive_search(queries[incomplete], k, row_excluded)
        return best

    def index(self) -> DenseIndex:
        """The index of the vectors, rebuilt if they have changed."""
        built = self._index
        if built is None or built[0] is not self.vectors or built[1] != self.vectors._version:
            if self._kept is not None:
                self.use_index(self._kept.get(self.vectors, self.kind))
            else:
                vectors = self.vectors.detach().float().cpu().numpy()
                self.use_index(DenseIndex.build(vectors, kind=self.kind))
        assert self._index is not None
        return self._index[2]

    def cache_index(self, folder: Path) -> None:
        """Cache the index of the current vectors in a folder, or load it from there; indexes of
        later vectors are not cached."""
        if self.kind != "flat":
            self._kept = CachedIndex(folder, self.vectors)

    def use_index(self, index: DenseIndex) -> None:
        """Search through an existing index of these vectors."""
        self.kind = index.kind
        self._index = (self.vectors, self.vectors._version, index)

    @property
    def recall(self) -> float | None:
        """Recall@10 of its index when built; None where unknown."""
        if self.kind == "flat":
            return 1.0
        return None if self._index is None else self._index[2].recall

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy has its own vectors, and builds its own, uncached index."""
        other = type(self).__new__(type(self))
        memo[id(self)] = other
        for name, value in self.__dict__.items():
            other.__dict__[name] = None if name in ("_index", "_kept") else deepcopy(value, memo)
        return other

    @torch.no_grad()
    def replace(
        self, document: Document, tokenizer: TokenizerProtocol, encode: EncodeBatch
    ) -> None:
        """Replace the document of the same name: its text, tokens and vector."""
        changed = self.documents.replacing(document)
        number = changed.numbers[document.name]
        tokens = self._encode(document, tokenizer)
        head, tail = tokens[: self.max_document_length - 2], tokens[self.max_document_length - 2 :]
        self.documents = changed
        self.tokens, self.offsets = _splice(self.tokens, self.offsets, number, head)
        if (
            len(self.truncated_offsets) > 1
        ):  # unknown where the texts were not tokenised again after loading
            truncated = self.truncated_tokens, self.truncated_offsets
            self.truncated_tokens, self.truncated_offsets = _splice(*truncated, number, tail)
        vectors = self.vectors.clone()
        row = torch.tensor([number], device=vectors.device)
        vectors[number] = self._check_width(encode(self.batch(row)))[0].to(vectors.dtype)
        self.vectors = vectors

    def _encode(self, document: Document, tokenizer: TokenizerProtocol) -> list[int]:
        """The tokens of a document, all of them."""
        title, body = title_and_body(document)
        if not self.title_separator or not title or self.vocabulary.end is None:
            return tokenizer.encode(document_text(document))
        return [*tokenizer.encode(title), self.vocabulary.end, *tokenizer.encode(body)]

    def _concatenate(self, documents: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """All tokens concatenated, and the start of each document."""
        lengths = torch.tensor([0, *(len(tokens) for tokens in documents)])
        flat = [token for tokens in documents for token in tokens]
        tokens = torch.tensor(flat, dtype=torch.int32, device=self.tokens.device)
        return tokens, lengths.cumsum(0).to(self.offsets.device)

    def _check_width(self, vectors: Tensor) -> Tensor:
        if vectors.shape[-1] != self.width:
            raise UserError(
                f"the memory holds vectors of width {self.width}, got {vectors.shape[-1]} from "
                "the encoder; build the memory with the encoder that searches it."
            )
        return vectors

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **options: Any
    ) -> None:
        """Resize the token buffers to those of the checkpoint."""
        # Older runs have no pending vectors.
        state_dict.setdefault(
            f"{prefix}pending_vectors", self.pending_vectors.new_zeros(0, self.width)
        )
        for name in ("tokens", "offsets", "vectors", "pending_vectors"):
            loaded, buffer = state_dict.get(f"{prefix}{name}"), getattr(self, name)
            if loaded is not None and loaded.shape[1:] == buffer.shape[1:]:
                setattr(self, name, buffer.new_zeros(loaded.shape))
        super()._load_from_state_dict(state_dict, prefix, *args, **options)


def _splice(
    tokens: Tensor, offsets: Tensor, number: int, replacement: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Tokens and offsets with one document's tokens replaced."""
    first, last = offsets[number : number + 2].tolist()
    new_offsets = offsets.clone()
    new_offsets[number + 1 :] += len(replacement) - (last - first)
    return torch.cat([tokens[:first], tokens.new_tensor(replacement), tokens[last:]]), new_offsets
