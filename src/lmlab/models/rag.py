"""Retrieval-augmented generation (RAG): retriever and encoder-decoder, summed over top-k documents.

Lewis et al. 2020, Retrieval-Augmented Generation for Knowledge-Intensive NLP Tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmlab.core.answers import Answer, Evidence
from lmlab.core.batch import Batch
from lmlab.core.capture import UNIT_INTERVAL, Capture
from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.loss import Loss
from lmlab.core.protocols import LogProbs
from lmlab.core.retrieval_protocols import RetrievedDocuments
from lmlab.core.state import State
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.vocabulary import Vocabulary
from lmlab.inference.decoding import decode, greedy_choice
from lmlab.models.retrieval_base import DocumentStoreModel, scatter_by_document
from lmlab.models.seq2seq import EncoderDecoderLM
from lmlab.objectives.document_marginalisation import DocumentMarginal
from lmlab.retrieval.bi_encoders import BiEncoder
from lmlab.retrieval.dense_index import DenseIndex
from lmlab.retrieval.document_concat import concatenate_rows
from lmlab.retrieval.document_memory import NO_DOCUMENT, DocumentMemory
from lmlab.retrieval.documents import Document

ANSWER_TOKEN_LIMIT = 50
"""The maximum length of an answer in tokens."""


class RAG(DocumentStoreModel):
    """RAG: p(y | x) = Σ over z of p(z | x) and p(y | x, z), z among the top K documents for x.

    p(z | x) is renormalised over those K, so that given them it is an exact distribution over
    texts. The generator's source is `<s> x </s> z </s>`; a text without a condition has an empty
    question. The document encoder is frozen: documents are embedded once, before training. Cost: K
    times the generator's, and a search among N documents for each question.
    """

    documents_embedded: Tensor
    """() bool: whether the documents have been embedded."""
    scorer_kind = "left-to-right"

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        generator: EncoderDecoderLM,
        retriever: BiEncoder,
        memory: DocumentMemory,
        marginal: DocumentMarginal,
        retrieved: int,
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.generator = generator
        self.retriever = retriever
        self.memory = memory
        self.marginal = marginal
        self.retrieved = retrieved
        self.register_buffer("documents_embedded", torch.tensor(False))

    @property
    def window(self) -> int | None:
        return self.generator.window

    def lengthening_hint(self, tokens: int) -> str:
        return self.generator.lengthening_hint(tokens)

    @property
    def document_memory(self) -> DocumentMemory:
        return self.memory

    @property
    def document_decoder(self) -> EncoderDecoderLM:
        """The generator, which is conditioned on one source: a question and a document."""
        return self.generator

    @property
    def decoding_methods(self) -> tuple[str, ...]:
        """Decoding methods, the default first."""
        return self.marginal.decoding_methods

    @property
    def max_question_length(self) -> int:
        """In tokens, special tokens included: the generator's maximum less the longest document."""
        assert self.window is not None, "the generator has a maximum length"
        return self.window + 1 - (self.memory.max_document_length - 1)

    def check_condition_length(self, tokens: int) -> None:
        if tokens > self.max_question_length:
            raise UserError(
                f"a question may have at most {self.max_question_length} tokens, including "
                f"special tokens, with a document of {self.memory.max_document_length}, got "
                f"{tokens}; shorten it, or "
                f"{self.lengthening_hint(tokens - self.max_question_length)}."
            )
        self.retriever.check_length(tokens)

    # ----- the documents

    def setup_tokenizer(self, tokenizer: TokenizerProtocol) -> None:
        """Tokenise the documents, once, with the first tokenizer given."""
        if self.tokenizer is None:
            self.tokenizer = tokenizer
            self.memory.setup_tokenizer(tokenizer)
            self.retriever.setup_documents(self.memory)
            self.documents_embedded = torch.zeros_like(self.documents_embedded)

    def setup_data(self, tokens: NDArray[np.generic], offsets: NDArray[np.int64]) -> None:
        self.embed_documents()

    def with_document(self, document: Document) -> Self:
        """The same model with one document replaced, matched by name: an edited fact."""
        self._ensure_embedded()
        other = self.with_memory(self.memory.shallow_copy())
        with evaluation_mode(other.retriever):
            other.memory.replace(document, self.require_tokenizer(), other.retriever.encode)
        return other

    def with_memory(self, memory: DocumentMemory) -> Self:
        """Shares all weights with this model."""
        other = copy(self)
        # Modules and buffers are held in dictionaries, which a shallow copy would share.
        other._modules, other._buffers = dict(self._modules), dict(self._buffers)
        other.memory = memory
        return other

    def embed_documents(self) -> None:
        with evaluation_mode(self.retriever):
            self.memory.embed(self.retriever.encode)
        self.documents_embedded = torch.ones_like(self.documents_embedded)

    def set_document_vectors(self, vectors: Tensor, index: DenseIndex | None) -> None:
        super().set_document_vectors(vectors, index)
        self.documents_embedded = torch.ones_like(self.documents_embedded)

    def _ensure_embedded(self) -> None:
        if not self.documents_embedded:
            self.embed_documents()

    # ----- retrieval

    def encode(self, batch: Batch) -> Tensor:
        """(B, width) document embeddings, which are not trained."""
        return self.retriever.encode(batch)

    def encode_queries(self, batch: Batch) -> Tensor:
        """(B, width) question embeddings."""
        return self.retriever.encode_queries(batch)

    def retrieve(self, batch: Batch, *, documents: int | None = None) -> RetrievedDocuments:
        """The most probable documents for questions (B, S); the null document if there are none."""
        self._ensure_embedded()
        queries = self.retriever.encode_queries(batch)
        numbers = self.memory.search(queries, self.retrieved if documents is None else documents)
        if numbers.shape[1] == 0:
            numbers = numbers.new_full((len(batch), 1), NO_DOCUMENT)
            return RetrievedDocuments(numbers=numbers, log_probs=queries.new_zeros(numbers.shape))
        scores = (self.memory.vectors[numbers] @ queries[..., None]).squeeze(-1)
        return RetrievedDocuments(numbers=numbers, log_probs=torch.log_softmax(scores, 1))

    def questions(self, condition: Batch | None, rows: int) -> Batch:
        """The question of each text; empty if there is none."""
        if condition is not None:
            return condition
        special_tokens = (self.vocabulary.bos, self.vocabulary.end)
        empty = [[id for id in special_tokens if id is not None]]
        batch = Batch.collate(empty * rows, self.vocabulary.pad)
        return batch.to(self.documents_embedded.device)

    def sources(self, questions: Batch, numbers: Tensor) -> Batch:
        """(B · K) rows `<s> x </s> z </s>`, the documents (B, K) of a question adjacent."""
        repeated = torch.arange(len(questions), device=numbers.device)
        repeated = repeated.repeat_interleave(numbers.shape[1])
        documents = self.memory.batch(numbers.flatten())
        return concatenate_rows(questions.select(repeated), documents, self.vocabulary.pad)

    # ----- the distribution

    def log_prob(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> LogProbs:
        questions = self.questions(batch.condition, len(batch))
        retrieved = self.retrieve(questions)
        log_probs = self.log_probs_given_documents(batch, questions, retrieved.numbers)
        per_token = self.marginal.log_probs(retrieved.log_probs, log_probs)
        per_token = per_token.masked_fill(~batch.targets_mask()[:, 1:], 0)
        return LogProbs(per_token=per_token, kind="exact")

    def log_probs_given_documents(self, batch: Batch, questions: Batch, numbers: Tensor) -> Tensor:
        """(B, K, T - 1) log p(y_t | x, z, y_<t) of texts given each of their documents (B, K)."""
        rows = torch.arange(len(batch), device=numbers.device).repeat_interleave(numbers.shape[1])
        texts = replace(batch, condition=None).select(rows)
        texts = replace(texts, condition=self.sources(questions, numbers))
        per_token: Tensor = self.generator.log_prob(texts).per_token.unflatten(0, numbers.shape)
        return per_token

    def loss(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> tuple[Loss, State | None]:
        """Minus log p(y | x): trains the generator and the question encoder jointly."""
        nats = -self.log_prob(batch).per_token.sum()
        return Loss(nats, torch.tensor(float(batch.count), device=nats.device)), None

    def start(self, rows: int, *, condition: Batch | None = None) -> RAGState:
        questions = self.questions(condition, rows)
        retrieved = self.retrieve(questions)
        sources = self.sources(questions, retrieved.numbers)
        return RAGState(
            inner=self.generator.start(len(sources), condition=sources),
            log_weights=retrieved.log_probs,
            retrieved=retrieved,
            sources=sources,
        )

    def peek(self, state: RAGState) -> Categorical:
        log_probs = self._next_by_document(state).log_probs.unflatten(0, state.log_weights.shape)
        return Categorical(torch.logsumexp(state.log_weights[..., None] + log_probs, dim=1))

    def advance(self, state: RAGState, tokens: Tensor) -> RAGState:
        repeated = tokens.repeat_interleave(state.log_weights.shape[1])

        def token_log_probs() -> Tensor:
            return self._next_by_document(state).log_prob(repeated).view_as(state.log_weights)

        weights = self.marginal.update_weights(state.log_weights, token_log_probs)
        inner = self.generator.advance(state.inner, repeated)  # type: ignore[arg-type]
        return replace(state, inner=inner, log_weights=weights)

    def _next_by_document(self, state: RAGState) -> Categorical:
        """(B · K, V) the next token given each document."""
        return self.generator.peek(state.inner)  # type: ignore[arg-type]

    # ----- answers and figures

    @torch.no_grad()
    def ask(self, questions: Sequence[str], *, answers: int = 1) -> list[list[Answer]]:
        """Greedy answers; `sampling/question_answering.py` has other strategies."""
        tokenizer, ends = self.require_tokenizer(), self.questions(None, 1).tokens[0].tolist()
        rows = [[*ends[:1], *tokenizer.encode(question), *ends[1:]] for question in questions]
        for row in rows:
            self.check_condition_length(len(row))
        batch = Batch.collate(rows, self.vocabulary.pad).to(self.documents_embedded.device)
        with evaluation_mode(self):
            state = self.start(len(batch), condition=batch)
            generated = decode(self, state, greedy_choice, [ANSWER_TOKEN_LIMIT] * len(batch))
        return [
            [Answer(text=tokenizer.decode(text.tokens), log_prob=text.log_prob, evidence=evidence)]
            for text, evidence in zip(generated, self.evidence(state.retrieved), strict=True)
        ]

    def evidence(self, retrieved: RetrievedDocuments) -> list[tuple[Evidence, ...]]:
        """The documents retrieved for each question with p(z | x), the most probable first."""
        return [
            tuple(
                self._evidence(number, probability)
                for number, probability in zip(numbers, row, strict=True)
                if number != NO_DOCUMENT
            )
            for numbers, row in zip(
                retrieved.numbers.tolist(), retrieved.log_probs.exp().tolist(), strict=True
            )
        ]

    @torch.no_grad()
    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        """Retrieved documents, their posterior at each token, and the generator's attention.

        The generator's internals are those given the most probable document.
        """
        questions = self.questions(batch.condition, len(batch))
        retrieved = self.retrieve(questions)
        log_probs = self.log_probs_given_documents(batch, questions, retrieved.numbers)
        posterior = self.marginal.posteriors(retrieved.log_probs, log_probs).exp()
        shares, names = self._by_document(retrieved.numbers, retrieved.log_probs.exp()[..., None])
        posteriors, _ = self._by_document(retrieved.numbers, posterior)
        best_sources = self.sources(questions, retrieved.numbers[:, :1])
        return {
            "retrieved documents": Capture(
                values=shares.squeeze(-1),
                axes=("batch", "choice"),
                caption="P(document | question), among the retrieved documents.",
                names={"choice": names},
                titles={"choice": "document"},
                sums_to_one="choice",
            ),
            "posterior over documents": Capture(
                values=posteriors.transpose(1, 2),
                axes=("batch", "time", "choice"),
                caption=(
                    "P(document | question, answer up to and including each token), among the "
                    "retrieved documents."
                ),
                names={"choice": names},
                titles={"choice": "document"},
                bounds=UNIT_INTERVAL,
            ),
            **self.generator.capture_internals(replace(batch, condition=best_sources)),
        }

    def _by_document(self, numbers: Tensor, values: Tensor) -> tuple[Tensor, tuple[str, ...]]:
        """(B, D, T) values (B, K, T) scattered to the D documents of all rows, and their names."""
        documents = list(dict.fromkeys(numbers.T.flatten().tolist()))
        names = ("nothing" if n == NO_DOCUMENT else self.documents[n].name for n in documents)
        return scatter_by_document(numbers, values, documents), tuple(names)


@dataclass(frozen=True, eq=False)
class RAGState:
    """B partial texts, each with K documents: B · K states of the generator, and weights."""

    inner: State
    """Of B · K rows, the documents of a text one after another."""
    log_weights: Tensor
    """(B, K) log p(document | question, tokens so far), where the marginal updates it."""
    retrieved: RetrievedDocuments
    """(B, K) the documents with log p(document | question)."""
    sources: Batch
    """(B · K) `<s> question </s> document </s>`, the generator's sources."""

    def select(self, rows: Tensor) -> RAGState:
        count = self.log_weights.shape[1]
        inner_rows = (rows[:, None] * count + torch.arange(count, device=rows.device)).flatten()
        return RAGState(
            inner=self.inner.select(inner_rows),
            log_weights=self.log_weights[rows],
            retrieved=self.retrieved.select(rows),
            sources=self.sources.select(inner_rows),
        )

    def detach(self) -> RAGState:
        return replace(self, inner=self.inner.detach(), log_weights=self.log_weights.detach())
