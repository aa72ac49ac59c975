"""A retriever that learns together with what reads its documents (Guu et al. 2020, REALM)."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn

from lmlab.backbones.text_encoder import PooledTextEncoder
from lmlab.core.batch import Batch
from lmlab.core.protocols import RetrievedDocuments
from lmlab.core.special_tokens import content_lengths
from lmlab.retrieval.document_memory import (
    NO_DOCUMENT,
    DocumentMemory,
    evaluation_mode,
)


class BackgroundComputation:
    """A tensor that is computed while its caller goes on; `result` waits for it.

    The thread ends with the program, so that stopping a training does not wait for it.
    """

    def __init__(self, compute: Callable[[], Tensor]) -> None:
        self._found: Tensor | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(compute,), daemon=True)
        self._thread.start()

    def _run(self, compute: Callable[[], Tensor]) -> None:
        try:
            self._found = compute()
        except BaseException as error:  # told where the result is asked for
            self._error = error

    def result(self) -> Tensor:
        """What was computed, or its error raised here."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._found is not None
        return self._found

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copied system waits for the same result."""
        return self


EXTRA_CANDIDATES = 8
"""Documents that are found beside those asked for, in place of those that may not be used."""
FIRST_REFRESH = 16
"""Steps after which all documents are embedded anew for the first time, or sooner if told."""


class Retriever(nn.Module):
    """p(z | x) ∝ exp(q(x) · d(z)) over the k documents found and, where asked, the null document.

    Which documents are found is told by an index that is as old as its last refresh; how likely
    they are by the encoders as they are now, so that the gradient reaches both. The null document
    is empty, and has its vector from the encoder like any other. Cost for a batch: a search among
    N documents and B · k passes of the documents' encoder; for a refresh N passes.

    Encoders change most at first, so that before `refresh` steps are over documents are embedded
    anew at steps 16, 32, 64 …: a training of a few steps searches no index of its beginning.
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
        """`refresh`: steps of training between two embeddings of all documents, 0 for one alone.

        `background`: whether they are embedded while training goes on, by a copy of the encoder.
        The index is taken up half of `refresh` later whether it is done sooner or must be waited
        for, so that what is found does not hang on how fast the machine is. `null`: whether the
        null document may be found as well.
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
        """Whether the documents' encoder rests, so that their vectors stay."""
        self._embedding: BackgroundComputation | None = None
        self._settled = False
        # A checkpoint holds the index that is under way: a run that goes on takes it up in time.
        self.register_state_dict_pre_hook(lambda module, *_: module._finish_embedding())

    def freeze_document_encoder(self) -> None:
        """Let the documents' encoder rest from here on, and be no longer shared with questions'."""
        self.documents = copy.deepcopy(self.documents).requires_grad_(False)
        self.fixed = True

    def begin_step(self, step: int) -> None:
        """Embed all documents anew where it is time, or begin to, or take up what was begun."""
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
        """Inside, the index is that of the documents' encoder as it is now; then as it was.

        So what is measured and kept of a training is not older than its weights, and the training
        goes on as if nobody had looked.
        """
        if self.fixed or self._settled or not self.retrieved:
            yield
            return
        self._finish_embedding()
        memory, before = self.memory, (self.memory.vectors, self.memory.pending_vectors)
        self._settled = True
        try:
            self.embed()
            memory.pending_vectors = memory.pending_vectors.new_zeros(0, memory.width)
            yield
        finally:
            self._settled = False
            memory.vectors, memory.pending_vectors = before

    def _finish_embedding(self) -> None:
        """Wait for what is being embedded in the background, and keep it."""
        if self._embedding is not None:
            self.memory.pending_vectors = self._embedding.result()
            self._embedding = None

    def embed(self) -> None:
        """Let the index be that of the documents' encoder as it is now."""
        with evaluation_mode(self.documents):
            self.memory.embed(self.documents)

    def find(
        self, questions: Batch, *, documents: int | None = None, clean: Batch | None = None
    ) -> RetrievedDocuments:
        """The documents for each question, M = k + 1 with the null document first, M = k without.

        Those that hold the whole text of `clean`, from which a question was made, are left out: in
        their place is a document of probability zero.
        """
        queries = self.questions(questions)
        k = self.retrieved if documents is None else documents
        numbers = self.memory.search(queries, k + (0 if clean is None else EXTRA_CANDIDATES))
        if clean is not None:
            numbers = self._without_trivial(numbers, clean)[:, :k]
        scores = self._scores(queries, numbers).masked_fill(numbers == NO_DOCUMENT, -torch.inf)
        if self.null:
            none = numbers.new_full((len(numbers), 1), NO_DOCUMENT)
            scores = torch.cat([self._null_score(queries), scores], 1)
            numbers = torch.cat([none, numbers], 1)
        return RetrievedDocuments(numbers=numbers, log_probs=torch.log_softmax(scores, 1))

    def _null_score(self, queries: Tensor) -> Tensor:
        """(B, 1)"""
        empty = self.memory.batch(torch.tensor([NO_DOCUMENT], device=queries.device))
        return queries @ self.documents(empty).T

    def _scores(self, queries: Tensor, numbers: Tensor) -> Tensor:
        """(B, k) q · d, each document read once, however many questions found it."""
        if not numbers.numel():
            return queries.new_zeros(numbers.shape)
        if self.fixed:
            vectors = self.memory.vectors[numbers.clamp(min=0)].to(queries.dtype)
            return (vectors * queries[:, None]).sum(-1)
        every, which = numbers.clamp(min=0).unique(return_inverse=True)
        vectors = self.documents(self.memory.batch(every))
        return (vectors[which] * queries[:, None]).sum(-1)

    def _without_trivial(self, numbers: Tensor, clean: Batch) -> Tensor:
        """The documents (B, k) in their order, those that hold the clean text behind as none."""
        trivial = self.contains_text(numbers, clean) | (numbers == NO_DOCUMENT)
        order = trivial.long().argsort(dim=1, stable=True)
        return numbers.masked_fill(trivial, NO_DOCUMENT).gather(1, order)

    def contains_text(self, numbers: Tensor, texts: Batch) -> Tensor:
        """(B, k) bool: whether the documents (B, k) hold all of each text, in whole words.

        The text must begin in what is read of a document; its end may stand in what was cut off.
        """
        tokens, lengths = self.memory.untruncated_tokens(numbers.flatten())
        tokens, lengths = tokens.unflatten(0, numbers.shape), lengths.view(numbers.shape)
        starts = self.memory.word_starts(numbers.flatten()).unflatten(0, numbers.shape)
        sought, size = texts.tokens[:, 1:], content_lengths(texts, self.memory.vocabulary)
        place = torch.arange(sought.shape[1], device=sought.device)
        beyond = (place >= size[:, None])[:, None]
        found = torch.zeros_like(numbers, dtype=torch.bool)
        tokens = nn.functional.pad(tokens, (0, sought.shape[1]), value=self.memory.vocabulary.pad)
        for first in range(
            min(tokens.shape[2] - sought.shape[1], self.memory.max_document_length - 2)
        ):
            here = tokens[:, :, first : first + sought.shape[1]] == sought[:, None]
            inside = first + size[:, None] <= lengths
            after = (first + size).clamp(max=starts.shape[2] - 1)[:, None, None]
            whole = starts[..., first] & starts.gather(2, after.expand(*lengths.shape, 1))[..., 0]
            found |= (here | beyond).all(-1) & inside & whole
        return found


def refresh_due(step: int, refresh: int) -> bool:
    """Whether all documents are to be embedded anew at a step, the first of all apart.

    Every `refresh` steps, and before the first of these at 16, 32, 64 …, as far as what begins
    there can be taken up in time; never where `refresh` is 0.
    """
    if not refresh or not step:
        return False
    power = step & (step - 1) == 0
    return step % refresh == 0 or (step >= FIRST_REFRESH and power and step + step // 2 < refresh)


def refresh_ready(step: int, refresh: int) -> bool:
    """Whether what was begun in the background is to be searched from a step on: half way to the
    next."""
    if not refresh or not step:
        return False
    if step > refresh:
        return step % refresh == refresh // 2
    return step % 3 == 0 and refresh_due(step // 3 * 2, refresh)
