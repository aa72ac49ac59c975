"""Jointly trained dense retriever with asynchronous index refresh (Guu et al. 2020, REALM)."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn

from lmlab.backbones.sentence_encoders import PooledTextEncoder
from lmlab.core.batch import Batch
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.retrieval_protocols import RetrievedDocuments
from lmlab.core.special_tokens import content_lengths
from lmlab.retrieval.document_memory import NO_DOCUMENT, DocumentMemory


class BackgroundComputation:
    """A tensor computed in a background thread; `result` waits for it.

    A daemon thread, so that stopping the training does not wait for it.
    """

    def __init__(self, compute: Callable[[], Tensor]) -> None:
        self._result: Tensor | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(compute,), daemon=True)
        self._thread.start()

    def _run(self, compute: Callable[[], Tensor]) -> None:
        try:
            self._result = compute()
        except BaseException as error:  # raised again by result()
            self._error = error

    def result(self) -> Tensor:
        """The computed tensor; raises the thread's error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copied model waits for the same result."""
        return self


EXTRA_CANDIDATES = 8
"""Extra documents retrieved, to replace those that may not be used."""
FIRST_REFRESH = 16
"""Step of the first index refresh, unless `refresh` is smaller."""


class Retriever(nn.Module):
    """Dense retriever: p(z | x) ∝ exp(q(x) · d(z)) over the top k and an optional null document.

    The top k come from an index as old as its last refresh; their probabilities from the current
    encoders, so that the gradient reaches both. The null document is empty and embedded like any
    other. Cost per batch: a search among N documents and B · k passes of the document encoder; per
    refresh N passes.

    Encoders change most at first, so before `refresh` steps are over the index is also refreshed at
    steps 16, 32, 64 …: short trainings do not search the initial index.
    """

    def __init__(
        self,
        questions: PooledTextEncoder,
        documents: PooledTextEncoder,
        memory: DocumentMemory,
        *,
        retrieved: int,
        refresh: int,
        background: bool = False,
        null: bool = True,
    ) -> None:
        """`refresh`: training steps between index refreshes, 0 for the initial one only.

        `background`: embed documents while training continues, by a copy of the encoder. The new
        index is adopted half of `refresh` later, waiting for it if necessary, so that results do
        not depend on the machine's speed. `null`: whether the null document is a candidate.
        """
        super().__init__()
        assert questions.width == documents.width == memory.width, "one space for all"
        self.questions = questions
        self.documents = documents
        self.memory = memory
        self.retrieved = retrieved
        self.refresh = refresh
        self.background = background
        self.null = null
        self.fixed = False
        """Whether the document encoder is frozen, so that its vectors stay valid."""
        self._embedding: BackgroundComputation | None = None
        self._settled = False
        # Checkpoints hold the pending index, so that a resumed run adopts it in time.
        self.register_state_dict_pre_hook(lambda module, *_: module._finish_embedding())

    def freeze_document_encoder(self) -> None:
        """Freeze the document encoder, and untie it from the query encoder."""
        self.documents = copy.deepcopy(self.documents).requires_grad_(False)
        self.fixed = True

    def begin_step(self, step: int) -> None:
        """Start an index refresh or adopt the pending one, if due at this step."""
        if not self.retrieved:
            return
        refresh = 0 if self.fixed else self.refresh
        if step == 0 or (not self.background and refresh_due(step, refresh)):
            self.embed()
            return
        if not self.background:
            return
        if refresh_ready(step, refresh):
            self._finish_embedding()
            self.memory.adopt_pending_vectors()
        if refresh_due(step, refresh):
            encoder = copy.deepcopy(self.documents).eval()
            self._embedding = BackgroundComputation(lambda: self.memory.embed_all(encoder))

    @contextmanager
    def refreshed(self) -> Iterator[None]:
        """Inside, the index is rebuilt from the current document encoder; restored on exit.

        So evaluation and checkpoints use an index as new as the weights, and training is not
        affected.
        """
        if self.fixed or self._settled or not self.retrieved:
            yield
            return
        self._finish_embedding()
        memory, saved = self.memory, (self.memory.vectors, self.memory.pending_vectors)
        self._settled = True
        try:
            self.embed()
            memory.pending_vectors = memory.pending_vectors.new_zeros(0, memory.width)
            yield
        finally:
            self._settled = False
            memory.vectors, memory.pending_vectors = saved

    def _finish_embedding(self) -> None:
        """Wait for the background embedding, and store it."""
        if self._embedding is not None:
            self.memory.pending_vectors = self._embedding.result()
            self._embedding = None

    def embed(self) -> None:
        """Rebuild the index from the current document encoder."""
        with evaluation_mode(self.documents):
            self.memory.embed(self.documents)

    def find(
        self, questions: Batch, *, documents: int | None = None, clean: Batch | None = None
    ) -> RetrievedDocuments:
        """The documents for each query, M = k + 1 with the null document first, M = k without.

        Documents that contain the whole text `clean`, from which a query was made, are excluded: an
        entry of probability zero replaces them.
        """
        queries = self.questions(questions)
        k = self.retrieved if documents is None else documents
        numbers = self.memory.search(queries, k + (0 if clean is None else EXTRA_CANDIDATES))
        if clean is not None:
            numbers = self._without_trivial(numbers, clean)[:, :k]
        scores = self._scores(queries, numbers).masked_fill(numbers == NO_DOCUMENT, -torch.inf)
        if self.null:
            null = numbers.new_full((len(numbers), 1), NO_DOCUMENT)
            scores = torch.cat([self._null_score(queries), scores], 1)
            numbers = torch.cat([null, numbers], 1)
        return RetrievedDocuments(numbers=numbers, log_probs=torch.log_softmax(scores, 1))

    def _null_score(self, queries: Tensor) -> Tensor:
        """(B, 1) score of the null document."""
        empty = self.memory.batch(torch.tensor([NO_DOCUMENT], device=queries.device))
        scores: Tensor = queries @ self.documents(empty).T
        return scores

    def _scores(self, queries: Tensor, numbers: Tensor) -> Tensor:
        """(B, k) q · d, each document encoded once, however many queries retrieved it."""
        if not numbers.numel():
            return queries.new_zeros(numbers.shape)
        if self.fixed:
            vectors = self.memory.vectors[numbers.clamp(min=0)].to(queries.dtype)
            return (vectors * queries[:, None]).sum(-1)
        unique, inverse = numbers.clamp(min=0).unique(return_inverse=True)
        vectors = self.documents(self.memory.batch(unique))
        scores: Tensor = (vectors[inverse] * queries[:, None]).sum(-1)
        return scores

    def _without_trivial(self, numbers: Tensor, clean: Batch) -> Tensor:
        """The documents (B, k) in order; those that contain the text become none, at the end."""
        trivial = self.contains_text(numbers, clean) | (numbers == NO_DOCUMENT)
        order = trivial.long().argsort(dim=1, stable=True)
        return numbers.masked_fill(trivial, NO_DOCUMENT).gather(1, order)

    def contains_text(self, numbers: Tensor, texts: Batch) -> Tensor:
        """(B, k) bool: whether the documents (B, k) contain each whole text, at word boundaries.

        The text must begin in the untruncated part of a document; it may end in the truncated part.
        """
        tokens, lengths = self.memory.untruncated_tokens(numbers.flatten())
        tokens, lengths = tokens.unflatten(0, numbers.shape), lengths.view(numbers.shape)
        starts = self.memory.word_starts(numbers.flatten()).unflatten(0, numbers.shape)
        targets, size = texts.tokens[:, 1:], content_lengths(texts, self.memory.vocabulary)
        position = torch.arange(targets.shape[1], device=targets.device)
        is_padding = (position >= size[:, None])[:, None]
        contained = torch.zeros_like(numbers, dtype=torch.bool)
        tokens = nn.functional.pad(tokens, (0, targets.shape[1]), value=self.memory.vocabulary.pad)
        for first in range(
            min(tokens.shape[2] - targets.shape[1], self.memory.max_document_length - 2)
        ):
            matches = tokens[:, :, first : first + targets.shape[1]] == targets[:, None]
            fits = first + size[:, None] <= lengths
            end = (first + size).clamp(max=starts.shape[2] - 1)[:, None, None]
            words = starts[..., first] & starts.gather(2, end.expand(*lengths.shape, 1))[..., 0]
            contained |= (matches | is_padding).all(-1) & fits & words
        return contained


def refresh_due(step: int, refresh: int) -> bool:
    """Whether an index refresh starts at this step, apart from the initial one.

    Every `refresh` steps, and before the first of these at 16, 32, 64 …, as far as the result can
    be adopted in time; never if `refresh` is 0.
    """
    if not refresh or not step:
        return False
    power = step & (step - 1) == 0
    return step % refresh == 0 or (step >= FIRST_REFRESH and power and step + step // 2 < refresh)


def refresh_ready(step: int, refresh: int) -> bool:
    """Whether the pending index is adopted at this step: half way to the next refresh."""
    if not refresh or not step:
        return False
    if step > refresh:
        return step % refresh == refresh // 2
    return step % 3 == 0 and refresh_due(step // 3 * 2, refresh)
