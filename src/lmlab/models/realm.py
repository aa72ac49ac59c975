"""REALM pre-training: masked language modelling with retrieved documents (Guu et al. 2020)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lmlab.core.answers import Answer
from lmlab.core.batch import Batch
from lmlab.core.capture import REAL, UNIT_INTERVAL, Capture
from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.parts import Network, Predictions, prediction_mask
from lmlab.core.protocols import LogProbs, RetrievedDocuments, TokenizerProtocol
from lmlab.core.state import State
from lmlab.core.system import Assembly
from lmlab.core.view import View
from lmlab.models.retrieval_base import RetrieverModel
from lmlab.objectives.masked_language_modelling import BERTObjective
from lmlab.objectives.masking.token_masking import require_mask_token
from lmlab.retrieval.document_concat import KnowledgeAugmentedEncoder
from lmlab.retrieval.document_memory import NO_DOCUMENT, evaluation_mode
from lmlab.retrieval.retriever import Retriever

QUESTION_BLANK_PATTERN = re.compile(r"_{2,}|<mask>")
"""Marks the blank of a question."""


class REALMObjective(BERTObjective):
    """REALM's loss: -log Σ_z p(z | x) Π_j p(y_j | z, x), y the masked words of x.

    z ranges over the retrieved documents and the null document, without those that contain the
    unmasked text, which would leak the targets. The gradient with respect to q · d(z) is p(z | x)
    [p(y | z, x) / p(y | x) - 1] (appendix of the paper): documents that help are rewarded.
    """

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
        found = network.backbone.find(view, clean=batch)
        each = network.log_probs_given_documents(view, found.numbers)
        lost = -torch.logsumexp(found.log_probs + each, 1).sum()
        return Loss(lost, prediction_mask(view).sum().float()), None

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

    @property
    def retriever(self) -> Retriever:
        return self.backbone.retriever

    def setup_tokenizer(self, tokenizer: TokenizerProtocol) -> None:
        super().setup_tokenizer(tokenizer)
        self.objective.setup_tokenizer(tokenizer)

    def log_probs_given_documents(self, view: View, numbers: Tensor) -> Tensor:
        """(B, M) log p(y | z, x) of all targets of each row given each of its documents (B, M)."""
        places = prediction_mask(view)
        each = self._target_components(view, places, numbers)
        rows = places.nonzero(as_tuple=True)[0]
        sums = each.new_zeros(len(places), numbers.shape[1])
        return sums.index_add(0, rows, each)

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions:
        """Each target marginalised over documents independently of the others."""
        self._check_visibility(view)
        places, found = prediction_mask(view), self.backbone.find(view)
        each = self._target_components(view, places, found.numbers)
        weights = found.log_probs[places.nonzero(as_tuple=True)[0]]
        return Predictions(log_probs=torch.logsumexp(weights + each, 1), target_mask=places)

    def _target_components(self, view: View, places: Tensor, numbers: Tensor) -> Tensor:
        """(N, M) log p(target | z, x)."""
        assert view.targets is not None
        values = self.backbone.components_at(view, places, numbers)
        targets = view.targets[places][:, None].expand(values.shape[:2])
        found = self.emission.log_prob(values.flatten(0, 1), targets.flatten())
        return found.view(values.shape[:2])

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
        each = self.emission.log_probs(values)
        return Categorical(torch.logsumexp(weights[..., None] + each, 1))

    @torch.no_grad()
    def ask(self, questions: Sequence[str], *, answers: int = 1) -> list[list[Answer]]:
        """The most probable words for the one blank of each question, `___` or `<mask>`.

        Special tokens, <unk> and word-internal pieces are left out, without renormalising. Answers
        are single tokens: a word of several pieces cannot be predicted.
        """
        pieces = self.require_tokenizer()
        rows = [self._with_blank(question, pieces) for question in questions]
        batch = Batch.collate(rows, self.vocabulary.pad)
        batch = batch.to(next(self.parameters()).device)
        masked = batch.tokens == require_mask_token(self.vocabulary)
        with evaluation_mode(self):
            view = self.objective.fill_view(batch, masked)
            retrieved = self.backbone.find(view)
            filled = self._fill_given_documents(view, masked, retrieved)
            log_probs = self._words_alone(filled.log_probs)
            best = log_probs.topk(min(answers, log_probs.shape[1]), dim=1)
            evidence = self.evidence(retrieved)
        return [
            [
                Answer(text=pieces.decode([token]), log_prob=log_prob, evidence=rests_on)
                for token, log_prob in zip(tokens, values, strict=True)
                if log_prob > -math.inf
            ]
            for tokens, values, rests_on in zip(
                best.indices.tolist(), best.values.tolist(), evidence, strict=True
            )
        ]

    def _words_alone(self, log_probs: Tensor) -> Tensor:
        """(N, V) with -inf at special tokens, <unk> and word-internal pieces."""
        beginnings = self.retriever.memory.words.word_start_tokens
        if beginnings is not None:
            log_probs = log_probs.masked_fill(~beginnings.to(log_probs.device), -math.inf)
        own = (*self.vocabulary.unpredictable, self.vocabulary.end, self.vocabulary.unknown)
        ids = torch.tensor([id for id in own if id is not None], device=log_probs.device)
        return log_probs.index_fill(1, ids, -math.inf)

    def _with_blank(self, question: str, pieces: TokenizerProtocol) -> list[int]:
        parts = QUESTION_BLANK_PATTERN.split(question)
        if len(parts) != 2:
            raise UserError(
                f"a question must have exactly one blank ___, got {len(parts) - 1} in "
                f"{question!r}; a run of objective=spans answers questions of any form."
            )
        before, after = (pieces.encode(part.strip()) for part in parts)
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
        found = self.backbone.find(view)
        each = self.log_probs_given_documents(view, found.numbers)
        return found.numbers, each - each[:, :1]

    @torch.no_grad()
    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        """The documents retrieved for the masked text, with their retrieval utility."""
        generator = torch.Generator(device=batch.tokens.device).manual_seed(0)
        view = self.objective.view(batch, generator=generator)
        found = self.backbone.find(view)
        numbers, utility = self.retrieval_utility(view)
        names = tuple(dict.fromkeys(map(self._name, numbers.flatten().tolist())))
        captures: dict[str, Any] = {
            "retrieved documents": (
                found.log_probs.exp(),
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
                values=self._by_name(numbers, values, names),
                axes=("batch", "choice"),
                caption=reading,
                names={"choice": names},
                titles={"choice": "document"},
                bounds=bounds,
            )
            for name, (values, reading, bounds) in captures.items()
        }

    def _name(self, number: int) -> str:
        return "no document" if number == NO_DOCUMENT else self.documents[number].name

    def _by_name(self, numbers: Tensor, values: Tensor, names: tuple[str, ...]) -> Tensor:
        """(B, D) values (B, M) scattered to the D documents of all rows."""
        place = {name: column for column, name in enumerate(names)}
        columns = [[place[self._name(number)] for number in row] for row in numbers.tolist()]
        spread = values.new_zeros(len(values), len(names))
        return spread.scatter(1, torch.tensor(columns, device=values.device), values)
