"""Document memory for retrieval: tokens, embeddings and nearest-neighbour search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.protocols import TokenizerProtocol
from lmlab.core.special_tokens import add_special_tokens
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.masking.whole_word_masking import WordUnits
from lmlab.retrieval.dense_index import CachedIndex, DenseIndex, IndexKind
from lmlab.retrieval.documents import Document, Documents, document_text

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
    two refreshes it is older than the encoder. Before the tokeniser is set there are no documents.
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
        longest: int,
        kind: IndexKind = "flat",
    ) -> None:
        """`longest`: maximum tokens of a document including <s> and </s>; the rest is truncated.

        `kind`: flat is exhaustive; ivf and hnsw are built when a search finds the vectors changed.
        """
        super().__init__()
        assert longest > 2, "a document has tokens between <s> and </s>"
        self.documents = documents
        self.vocabulary = vocabulary
        self.width = width
        self.max_document_length = longest
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

    def setup_tokenizer(self, pieces: TokenizerProtocol) -> None:
        """Tokenise all documents; their vectors are zero until `embed`."""
        self.words.setup_tokenizer(pieces)
        every = [pieces.encode(document_text(document)) for document in self.documents]
        self.tokens, self.offsets = self._joined(
            [each[: self.max_document_length - 2] for each in every]
        )
        rest = self._joined([each[self.max_document_length - 2 :] for each in every])
        self.truncated_tokens, self.truncated_offsets = rest
        self.vectors = self.vectors.new_zeros(len(every), self.width)

    def for_documents(self, documents: Documents, pieces: TokenizerProtocol) -> DocumentMemory:
        """A memory like this one for other documents, not embedded yet."""
        words: dict[str, Any] = {
            "width": self.width,
            "longest": self.max_document_length,
            "kind": self.kind,
        }
        other = DocumentMemory(documents, self.vocabulary, **words).to(self.vectors)
        other.setup_tokenizer(pieces)
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
        return self._at(numbers, self.tokens, self.offsets)

    def untruncated_tokens(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """(M, L) and (M,) the same including the truncated part, which no encoder sees."""
        kept, lengths = self.document_tokens(numbers)
        rest, more = self._at(numbers, self.truncated_tokens, self.truncated_offsets)
        place = torch.arange(kept.shape[1] + rest.shape[1], device=numbers.device)
        ends, whole = lengths[:, None], (lengths + more)[:, None]
        tokens = kept.new_full((len(numbers), len(place)), self.vocabulary.pad)
        tokens[place < ends] = kept[place[: kept.shape[1]] < ends]
        tokens[(place >= ends) & (place < whole)] = rest[place[: rest.shape[1]] < more[:, None]]
        return tokens, lengths + more

    def word_starts(self, numbers: Tensor) -> Tensor:
        """(M, L + 1) bool: word starts in untruncated documents (M,); true after the end.

        So a word ends before each of these positions, and a truncated word has no end.
        """
        tokens, lengths = self.untruncated_tokens(numbers)
        batch = Batch(tokens=tokens, lengths=lengths, rows=numbers)
        inside = torch.arange(tokens.shape[1], device=numbers.device) < lengths[:, None]
        return nn.functional.pad(self.words.starts(batch, inside) | ~inside, (0, 1), value=True)

    def _at(self, numbers: Tensor, tokens: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        real = numbers.clamp(min=0)
        # Before the tokeniser is set there is one offset, and only the null document.
        after = offsets[(real + 1).clamp(max=len(offsets) - 1)]
        first = offsets[real.clamp(max=len(offsets) - 1)]
        lengths = (after - first) * (numbers >= 0)
        place = torch.arange(int(lengths.max()) if len(lengths) else 0, device=numbers.device)
        inside = place < lengths[:, None]
        at = torch.where(inside, first[:, None] + place, 0)
        # A memory of null documents only has no tokens to index.
        found = tokens[at] if len(tokens) else torch.zeros_like(at)
        return torch.where(inside, found.long(), self.vocabulary.pad), lengths

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
            vectors[numbers] = self._checked(encode(self.batch(numbers))).to(vectors.dtype)
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
    def search(self, queries: Tensor, k: int, *, without: Tensor | None = None) -> Tensor:
        """(B, K) ids of the best documents for queries (B, width), best first.

        K is k, or the number of documents if smaller. `without` (B, E) excludes documents per row,
        -1 for none; where too few are left, the row is filled with the null document.
        """
        found = min(k, len(self))
        if found == 0:
            return torch.zeros(len(queries), 0, dtype=torch.int64, device=queries.device)
        if self.kind != "flat":
            return self._by_index(queries, found, without)
        return self._by_product(queries, found, without)

    def _by_product(self, queries: Tensor, found: int, without: Tensor | None) -> Tensor:
        size = max(1, SEARCH_CHUNK // len(self))
        parts = []
        for first in range(0, len(queries), size):
            left_out = None if without is None else without[first : first + size]
            parts.append(self._best(queries[first : first + size], found, left_out))
        return torch.cat(parts) if parts else queries.new_zeros(0, found, dtype=torch.int64)

    def _best(self, queries: Tensor, k: int, without: Tensor | None) -> Tensor:
        scores = queries.to(self.vectors.dtype) @ self.vectors.T
        if without is not None:
            row = torch.arange(len(scores), device=scores.device)[:, None].expand_as(without)
            scores[row[without >= 0], without[without >= 0]] = -torch.inf
        best = scores.topk(k, dim=1)
        return best.indices.masked_fill(best.values == -torch.inf, NO_DOCUMENT)

    def _by_index(self, queries: Tensor, found: int, without: Tensor | None) -> Tensor:
        """The same by the approximate index; exhaustive where it returns too few."""
        if not len(queries):
            return queries.new_zeros(0, found, dtype=torch.int64)
        spare = 0 if without is None else without.shape[1]
        asked = queries.detach().float().cpu().numpy()
        _, numbers = self.index().search(asked, min(found + spare, len(self)))
        best = torch.from_numpy(numbers).to(queries.device)
        if without is not None:
            left_out = (best[..., None] == without[:, None]).any(-1)
            order = left_out.long().argsort(dim=1, stable=True)
            best = best.masked_fill(left_out, NO_DOCUMENT).gather(1, order)[:, :found]
        short = (best == NO_DOCUMENT).any(1)
        if bool(short.any()):
            fewer = None if without is None else without[short]
            best[short] = self._by_product(queries[short], found, fewer)
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
    def replace(self, document: Document, pieces: TokenizerProtocol, encode: EncodeBatch) -> None:
        """Replace the document of the same name: its text, tokens and vector."""
        changed = self.documents.replacing(document)
        number = changed.numbers[document.name]
        inner = pieces.encode(document_text(document))
        kept, rest = inner[: self.max_document_length - 2], inner[self.max_document_length - 2 :]
        self.documents = changed
        self.tokens, self.offsets = _with(self.tokens, self.offsets, number, kept)
        if (
            len(self.truncated_offsets) > 1
        ):  # unknown where the texts were not tokenised again after loading
            ends = self.truncated_tokens, self.truncated_offsets
            self.truncated_tokens, self.truncated_offsets = _with(*ends, number, rest)
        vectors = self.vectors.clone()
        here = torch.tensor([number], device=vectors.device)
        vectors[number] = self._checked(encode(self.batch(here)))[0].to(vectors.dtype)
        self.vectors = vectors

    def _joined(self, documents: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """All tokens concatenated, and the start of each document."""
        lengths = torch.tensor([0, *(len(tokens) for tokens in documents)])
        flat = [token for tokens in documents for token in tokens]
        tokens = torch.tensor(flat, dtype=torch.int32, device=self.tokens.device)
        return tokens, lengths.cumsum(0).to(self.offsets.device)

    def _checked(self, vectors: Tensor) -> Tensor:
        if vectors.shape[-1] != self.width:
            raise UserError(
                f"the memory holds vectors of width {self.width}, got {vectors.shape[-1]} from "
                "the encoder; build the memory with the encoder that searches it."
            )
        return vectors

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **words: Any
    ) -> None:
        """Resize the token buffers to those of the checkpoint."""
        # Older runs have no pending vectors.
        state_dict.setdefault(
            f"{prefix}pending_vectors", self.pending_vectors.new_zeros(0, self.width)
        )
        for name in ("tokens", "offsets", "vectors", "pending_vectors"):
            loaded, own = state_dict.get(f"{prefix}{name}"), getattr(self, name)
            if loaded is not None and loaded.shape[1:] == own.shape[1:]:
                setattr(self, name, own.new_zeros(loaded.shape))
        super()._load_from_state_dict(state_dict, prefix, *args, **words)


def _with(
    tokens: Tensor, offsets: Tensor, number: int, inner: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Tokens and offsets with one document's tokens replaced."""
    first, last = offsets[number : number + 2].tolist()
    moved = offsets.clone()
    moved[number + 1 :] += len(inner) - (last - first)
    return torch.cat([tokens[:first], tokens.new_tensor(inner), tokens[last:]]), moved


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, as when texts are embedded during training; no dropout."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)
