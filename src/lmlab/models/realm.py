"""REALM pre-training: model and loss of masked LM with retrieved documents (Guu et al. 2020)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lmlab.core.answers import Answer
from lmlab.core.assembly import Assembly
from lmlab.core.batch import Batch
from lmlab.core.capture import REAL, UNIT_INTERVAL, Capture
from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.loss import Loss
from lmlab.core.parts import Network, Predictions, prediction_mask
from lmlab.core.protocols import LogProbs
from lmlab.core.retrieval_protocols import RetrievedDocuments
from lmlab.core.state import State
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.view import View
from lmlab.models.retrieval_base import RetrieverModel, scatter_by_document
from lmlab.objectives.masked_language_modelling import BERTObjective
from lmlab.objectives.masking.token_masking import require_mask_token
from lmlab.retrieval.document_concat import KnowledgeAugmentedEncoder
from lmlab.retrieval.document_memory import NO_DOCUMENT
from lmlab.retrieval.retriever import Retriever

QUESTION_BLANK_PATTERN = re.compile(r"_{2,}|<mask>")
"""Marks the blank of a question."""


class REALMObjective(BERTObjective):
    """REALM's loss: -log Σ_z p(z | x) Π_j p(y_j | z, x), y the masked words of x.

    z ranges over the retrieved documents and the null document, without those that contain the
    unmasked text, which would leak the targets. The gradient with respect to q · d(z) is p(z | x)
    [p(y | z, x) / p(y | x) - 1] (appendix of the paper): documents that help are rewarded.
    """

    prediction_kind = ""  # it marginalises documents

    def loss(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        """Summed over texts, counted in masked tokens."""
        assert isinstance(network, REALM)
        _refuse_questions(batch)
        view = self.view(batch, generator=generator)
        retrieved = network.backbone.find(view, clean=batch)
        log_probs = network.log_probs_given_documents(view, retrieved.numbers)
        nats = -torch.logsumexp(retrieved.log_probs + log_probs, 1).sum()
        return Loss(nats, prediction_mask(view).sum().float()), None

    def log_prob(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        _refuse_questions(batch)
        return super().log_prob(network, batch, state=state, generator=generator)


def _refuse_questions(batch: Batch) -> None:
    if batch.condition is not None:
        raise UserError(
            "masked words are predicted in single texts, and this corpus has questions with "
            "answers; remove the questions, or train with --set objective=spans."
        )


class REALM(RetrieverModel, Assembly):
    """REALM: p(s_t | x) = Σ_z p(z | x) p(s_t | z, x) at masked positions; pseudo-likelihood.

    In scoring and infilling no document is excluded, even if it contains the text.
    """

    backbone: KnowledgeAugmentedEncoder
    objective: REALMObjective
    validation_metric = "loss"
    scorer_kind = "masked"

    @property
    def retriever(self) -> Retriever:
        return self.backbone.retriever

    def setup_tokenizer(self, tokenizer: TokenizerProtocol) -> None:
        super().setup_tokenizer(tokenizer)
        self.objective.setup_tokenizer(tokenizer)

    def log_probs_given_documents(self, view: View, numbers: Tensor) -> Tensor:
        """(B, M) log p(y | z, x) of all targets of each row given each of its documents (B, M)."""
        target_mask = prediction_mask(view)
        log_probs = self._target_components(view, target_mask, numbers)
        rows = target_mask.nonzero(as_tuple=True)[0]
        sums = log_probs.new_zeros(len(target_mask), numbers.shape[1])
        return sums.index_add(0, rows, log_probs)

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions:
        """Each target marginalised over documents independently of the others."""
        self._check_attention_mask(view)
        target_mask, retrieved = prediction_mask(view), self.backbone.find(view)
        log_probs = self._target_components(view, target_mask, retrieved.numbers)
        weights = retrieved.log_probs[target_mask.nonzero(as_tuple=True)[0]]
        return Predictions(
            log_probs=torch.logsumexp(weights + log_probs, 1), target_mask=target_mask
        )

    def _target_components(self, view: View, target_mask: Tensor, numbers: Tensor) -> Tensor:
        """(N, M) log p(target | z, x)."""
        assert view.targets is not None
        values = self.backbone.components_at(view, target_mask, numbers)
        targets = view.targets[target_mask][:, None].expand(values.shape[:2])
        log_probs = self.emission.log_prob(values.flatten(0, 1), targets.flatten())
        return log_probs.view(values.shape[:2])

    def fill(
        self, batch: Batch, masked: Tensor, *, generator: torch.Generator | None = None
    ) -> Categorical:
        """(N, V) the distribution at each masked position, in reading order."""
        view = self.objective.fill_view(batch, masked)
        return self._fill_given_documents(view, masked, self.backbone.find(view))

    def _fill_given_documents(
        self, view: View, masked: Tensor, retrieved: RetrievedDocuments
    ) -> Categorical:
        """(N, V) the distribution at each masked position, marginalised over documents."""
        values = self.backbone.components_at(view, masked, retrieved.numbers)
        weights = retrieved.log_probs[masked.nonzero(as_tuple=True)[0]]
        log_probs = self.emission.log_probs(values)
        return Categorical(torch.logsumexp(weights[..., None] + log_probs, 1))

    @torch.no_grad()
    def ask(self, questions: Sequence[str], *, answers: int = 1) -> list[list[Answer]]:
        """The most probable words for the one blank of each question, `___` or `<mask>`.

        Special tokens, <unk> and word-internal pieces are left out, without renormalising. Answers
        are single tokens: a word of several pieces cannot be predicted.
        """
        tokenizer = self.require_tokenizer()
        rows = [self._encode_question(question, tokenizer) for question in questions]
        batch = Batch.collate(rows, self.vocabulary.pad)
        batch = batch.to(next(self.parameters()).device)
        masked = batch.tokens == require_mask_token(self.vocabulary)
        with evaluation_mode(self):
            view = self.objective.fill_view(batch, masked)
            retrieved = self.backbone.find(view)
            filled = self._fill_given_documents(view, masked, retrieved)
            log_probs = self._mask_non_words(filled.log_probs)
            best = log_probs.topk(min(answers, log_probs.shape[1]), dim=1)
            evidence = self.evidence(retrieved)
        return [
            [
                Answer(text=tokenizer.decode([token]), log_prob=log_prob, evidence=row_evidence)
                for token, log_prob in zip(tokens, values, strict=True)
                if log_prob > -math.inf
            ]
            for tokens, values, row_evidence in zip(
                best.indices.tolist(), best.values.tolist(), evidence, strict=True
            )
        ]

    def _mask_non_words(self, log_probs: Tensor) -> Tensor:
        """(N, V) with -inf at special tokens, <unk> and word-internal pieces."""
        word_starts = self.retriever.memory.words.word_start_tokens
        if word_starts is not None:
            log_probs = log_probs.masked_fill(~word_starts.to(log_probs.device), -math.inf)
        special = (*self.vocabulary.unpredictable, self.vocabulary.end, self.vocabulary.unknown)
        ids = torch.tensor([id for id in special if id is not None], device=log_probs.device)
        return log_probs.index_fill(1, ids, -math.inf)

    def _encode_question(self, question: str, tokenizer: TokenizerProtocol) -> list[int]:
        parts = QUESTION_BLANK_PATTERN.split(question)
        if len(parts) != 2:
            raise UserError(
                f"a question must have exactly one blank ___, got {len(parts) - 1} in "
                f"{question!r}; a run of objective=spans answers questions of any form."
            )
        before, after = (tokenizer.encode(part.strip()) for part in parts)
        end = [] if self.vocabulary.end is None else [self.vocabulary.end]
        row = [self.vocabulary.bos, *before, require_mask_token(self.vocabulary), *after, *end]
        self.check_length(len(row))
        return row

    @torch.no_grad()
    def retrieval_utility(self, view: View) -> tuple[Tensor, Tensor]:
        """(B, M) retrieved documents, and (B, M) log p(y | z, x) - log p(y | null, x) of each.

        Retrieval utility (RU, Guu et al. 2020, §5.1): how much a document helps to predict the
        masked tokens of a view.
        """
        retrieved = self.backbone.find(view)
        log_probs = self.log_probs_given_documents(view, retrieved.numbers)
        return retrieved.numbers, log_probs - log_probs[:, :1]

    @torch.no_grad()
    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        """The documents retrieved for the masked text, with their retrieval utility."""
        generator = torch.Generator(device=batch.tokens.device).manual_seed(0)
        view = self.objective.view(batch, generator=generator)
        retrieved = self.backbone.find(view)
        numbers, utility = self.retrieval_utility(view)
        documents = list(dict.fromkeys(numbers.flatten().tolist()))
        names = tuple(map(self._name, documents))
        captures: dict[str, Any] = {
            "retrieved documents": (
                retrieved.log_probs.exp(),
                "P(document | text with masked words), among the retrieved documents.",
                UNIT_INTERVAL,
            ),
            "retrieval utility": (
                utility,
                "Nats by which the masked words are likelier given a document than without one.",
                REAL,
            ),
        }
        return {
            name: Capture(
                values=scatter_by_document(numbers, values[..., None], documents).squeeze(-1),
                axes=("batch", "choice"),
                caption=caption,
                names={"choice": names},
                titles={"choice": "document"},
                bounds=bounds,
            )
            for name, (values, caption, bounds) in captures.items()
        }

    def _name(self, number: int) -> str:
        return "no document" if number == NO_DOCUMENT else self.documents[number].name
