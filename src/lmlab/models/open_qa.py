"""Extractive open-domain QA with REALM: answers are spans of retrieved texts (Guu et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.answers import Answer, Evidence
from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.loss import Loss
from lmlab.core.protocols import LogProbs
from lmlab.core.retrieval_protocols import RetrievedDocuments
from lmlab.core.special_tokens import add_special_tokens, content_lengths
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.retrieval_base import RetrieverModel
from lmlab.retrieval.document_concat import KnowledgeAugmentedEncoder, concatenate_documents
from lmlab.retrieval.retriever import Retriever


class SpanScorer(nn.Module):
    """Span scores: MLP([h_start; h_end]) of all spans of at most `max_span_length` tokens.

    States (R, L, W) to scores (R, L, A), entry (l, a) of the span from l to l + a; -inf beyond the
    end of the document. The MLP's first layer is applied to starts and ends separately, so it costs
    R · L · W² and not A times that.
    """

    def __init__(self, width: int, *, max_span_length: int) -> None:
        super().__init__()
        self.max_span_length = max_span_length
        self.starts = nn.Linear(width, width)
        self.ends = nn.Linear(width, width, bias=False)
        self.scores = nn.Linear(width, 1, bias=False)

    def forward(self, values: Tensor, lengths: Tensor) -> Tensor:
        time = values.shape[1]
        starts, ends = (
            self.starts(values),
            F.pad(self.ends(values), (0, 0, 0, self.max_span_length - 1)),
        )
        scores = [
            self.scores(F.gelu(starts + ends[:, offset : offset + time])).squeeze(-1)
            for offset in range(self.max_span_length)
        ]
        first = torch.arange(time, device=values.device)[:, None]
        last = first + torch.arange(self.max_span_length, device=values.device)
        return torch.stack(scores, -1).masked_fill(last >= lengths[:, None, None], -torch.inf)


class OpenQAModel(RetrieverModel):
    """Open QA: p(y | x) = Σ_z p(z | x) Σ_{s ∈ S(z, y)} p(s | z, x), S the occurrences of y in z.

    p(s | z, x) is a softmax over all spans of whole words of a document. If no retrieved document
    contains the answer the sum gives no gradient; so, as in Lee et al. 2019, an early loss trains
    the retriever on a larger set (`early` documents): -log Σ_{z ∋ y} p(z | x), by the vectors in
    the index. A text is the answer to the question that is its condition.
    """

    validation_metric = "spans"

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        backbone: KnowledgeAugmentedEncoder,
        spans: SpanScorer,
        early: int,
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.backbone = backbone
        self.spans = spans
        self.early_candidates = early

    @property
    def window(self) -> int | None:
        """A question is encoded with its last token."""
        positions = self.backbone.max_positions
        return None if positions is None else positions - 1

    def lengthening_hint(self, tokens: int) -> str:
        if self.window is None:
            return super().lengthening_hint(tokens)
        return f"train it with --set length={self.window + 1 + tokens}"

    @property
    def retriever(self) -> Retriever:
        return self.backbone.retriever

    @property
    def chance_nats(self) -> float:
        """Nats of a uniform guess over all spans of all documents: the cost of a miss."""
        return math.log(max(1, len(self.retriever.memory.tokens)) * self.spans.max_span_length)

    def loss(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> tuple[Loss, State | None]:
        """Span loss plus early retrieval loss, per question.

        A question whose answer is not retrieved counts as a guess and gives no gradient.
        """
        questions, count = self._questions(batch), torch.tensor(float(len(batch)))
        parts = {}
        for name, log_prob in (
            ("spans", self._log_prob(batch, questions)),
            ("early", self._log_prob_early(batch, questions)),
        ):
            nats = torch.where(log_prob > -torch.inf, -log_prob, self.chance_nats).sum()
            parts[name] = Loss(nats, count.to(nats.device))
        total = parts["spans"].total + parts["early"].total
        return Loss(total, parts["spans"].count, parts), None

    def log_prob(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> LogProbs:
        """log p(y | x) of the whole answer; -inf if no retrieved document contains it."""
        log_probs = self._log_prob(batch, self._questions(batch))
        zeros = torch.zeros(batch.tokens[:, 1:].shape, device=log_probs.device)
        return LogProbs(per_token=zeros, per_sequence=log_probs, kind="exact", whole_text_only=True)

    def _questions(self, batch: Batch) -> Batch:
        if batch.condition is None:
            raise UserError(
                "objective=spans needs questions with answers, and this corpus has single "
                "texts; give a corpus of pairs (--data wordnet-questions), or remove the "
                "objective."
            )
        return batch.condition

    def _log_prob(self, batch: Batch, questions: Batch) -> Tensor:
        """(B,) over the retrieved documents."""
        retrieved = self.retriever.find(questions)
        spans = (
            self.span_log_probs(questions, retrieved.numbers) + retrieved.log_probs[..., None, None]
        )
        correct = self._answer_spans(batch, retrieved.numbers, spans)
        return _log_sum(spans.masked_fill(~correct, -torch.inf).flatten(1))

    def _log_prob_early(self, batch: Batch, questions: Batch) -> Tensor:
        """(B,) log Σ p(z | x) over those of the early candidates that contain the answer."""
        memory, queries = self.retriever.memory, self.encode_queries(questions)
        numbers = memory.search(queries, self.early_candidates)
        scores = (memory.vectors[numbers].detach() * queries[:, None]).sum(-1)
        contains_answer = self.retriever.contains_text(numbers, batch)
        return _log_sum(torch.log_softmax(scores, 1).masked_fill(~contains_answer, -torch.inf))

    def span_log_probs(self, questions: Batch, numbers: Tensor) -> Tensor:
        """(B, K, L, A) log p(s | z, x) of all spans of the documents (B, K).

        Spans that split words are excluded: -inf. A document with no allowed span answers nothing.
        """
        view = View(inputs=questions.tokens, lengths=questions.lengths, attention_mask=FullMask())
        inputs, time = concatenate_documents(view, numbers, self.retriever.memory)
        values = self.backbone.encoder(inputs).values
        _, lengths = self.retriever.memory.document_tokens(numbers.flatten())
        first = questions.lengths.repeat_interleave(numbers.shape[1])
        offsets = torch.arange(int(lengths.max()), device=lengths.device)
        positions = (first[:, None] + offsets).clamp(max=time - 1)
        document_states = values.gather(1, positions[..., None].expand(-1, -1, values.shape[2]))
        scores = self.spans(document_states, lengths)
        scores = scores.masked_fill(~self._whole_words(numbers.flatten(), scores), -torch.inf)
        possible = (scores > -torch.inf).flatten(1).any(1)[:, None, None]
        # A softmax over -inf only has a NaN gradient.
        safe = torch.where(possible, scores, 0.0).flatten(1)
        log_probs = torch.where(possible, torch.log_softmax(safe, 1).view_as(scores), -torch.inf)
        by_document: Tensor = log_probs.unflatten(0, numbers.shape)
        return by_document

    def _whole_words(self, numbers: Tensor, scores: Tensor) -> Tensor:
        """(M, L, A) bool: whether a span of a document (M,) begins and ends at word boundaries."""
        time, max_span_length = scores.shape[1:]
        starts = F.pad(self.retriever.memory.word_starts(numbers), (0, max_span_length), value=True)
        return starts[:, :time, None] & starts[:, 1:].unfold(1, max_span_length, 1)[:, :time]

    def _answer_spans(self, batch: Batch, numbers: Tensor, spans: Tensor) -> Tensor:
        """(B, K, L, A) bool: the spans that equal the answer, S(z, y)."""
        tokens, _ = self.retriever.memory.document_tokens(numbers.flatten())
        answers, size = batch.tokens[:, 1:], content_lengths(batch, self.vocabulary)
        targets = answers.repeat_interleave(numbers.shape[1], 0)
        sizes = size.repeat_interleave(numbers.shape[1])
        matches = torch.zeros(len(tokens), *spans.shape[2:], dtype=torch.bool, device=tokens.device)
        equal = torch.ones_like(tokens, dtype=torch.bool)
        padded = F.pad(tokens, (0, self.spans.max_span_length), value=self.vocabulary.pad)
        for offset in range(min(self.spans.max_span_length, targets.shape[1])):
            equal = equal & (
                padded[:, offset : offset + tokens.shape[1]] == targets[:, offset, None]
            )
            matches[:, :, offset] = equal & (sizes == offset + 1)[:, None]
        occurrences: Tensor = matches.unflatten(0, numbers.shape) & (spans > -torch.inf)
        return occurrences

    @torch.no_grad()
    def ask(self, questions: Sequence[str], *, answers: int = 1) -> list[list[Answer]]:
        """The most probable answers in the retrieved documents, with these documents as evidence.

        The probability of a document is its posterior given the answer, p(z | x, y).
        """
        batch = self.encode_questions(questions)
        with evaluation_mode(self):
            return self.answers_from_documents(batch, self.retriever.find(batch), answers=answers)

    def encode_questions(self, texts: Sequence[str]) -> Batch:
        """Tokenise questions into a batch."""
        rows = [self.require_tokenizer().encode(text) for text in texts]
        lengths = torch.tensor([len(row) for row in rows])
        flat = Batch.collate(rows, self.vocabulary.pad)
        batch = add_special_tokens(flat.tokens, lengths, self.vocabulary)
        self.check_condition_length(int(batch.lengths.max()))
        return batch.to(next(self.parameters()).device)

    @torch.no_grad()
    def answers_from_documents(
        self, questions: Batch, retrieved: RetrievedDocuments, *, answers: int = 1
    ) -> list[list[Answer]]:
        """The most probable answers from given documents, however they were retrieved."""
        joint = (
            self.span_log_probs(questions, retrieved.numbers) + retrieved.log_probs[..., None, None]
        )
        return [
            self._best_answers(numbers, row_joint, answers)
            for numbers, row_joint in zip(retrieved.numbers, joint.double(), strict=True)
        ]

    def _best_answers(self, numbers: Tensor, joint: Tensor, count: int) -> list[Answer]:
        """Answers by the sum over all their occurrences, given joint (K, L, A)."""
        memory, tokenizer = self.retriever.memory, self.require_tokenizer()
        tokens = memory.document_tokens(numbers)[0].tolist()
        shares: dict[tuple[int, ...], dict[int, float]] = {}
        for column, first, offset in (joint > -torch.inf).nonzero().tolist():
            span = tuple(tokens[column][first : first + offset + 1])
            by_document = shares.setdefault(span, {})
            probability = math.exp(joint[column, first, offset])
            number = int(numbers[column])
            by_document[number] = by_document.get(number, 0.0) + probability
        best = sorted(shares, key=lambda span: -sum(shares[span].values()))[:count]
        return [
            Answer(
                text=tokenizer.decode(span),
                log_prob=math.log(total) if (total := sum(shares[span].values())) else -math.inf,
                evidence=self._posterior_evidence(shares[span]),
            )
            for span in best
        ]

    def _posterior_evidence(self, probabilities: dict[int, float]) -> tuple[Evidence, ...]:
        total = sum(probabilities.values()) or 1.0
        ordered = sorted(probabilities.items(), key=lambda item: -item[1])
        return tuple(self._evidence(number, probability / total) for number, probability in ordered)


def _log_sum(values: Tensor) -> Tensor:
    """(B,) log Σ exp over each row (B, N); -inf, without gradient, where all are -inf."""
    possible = (values > -torch.inf).any(1)
    # A softmax over -inf only has a NaN gradient.
    safe = torch.where(possible[:, None], values, 0.0)
    return torch.where(possible, torch.logsumexp(safe, 1), -torch.inf)
