"""CogQA (Ding et al. 2019): span reader (system 1), graph network (system 2), training of both."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.loss import Loss
from lmlab.core.protocols import EncodeTokens, require
from lmlab.core.state import State
from lmlab.core.system import System, TrainableSystem
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.batches import group_by_length
from lmlab.layers.span_pointers import (
    ANSWER_POINTER,
    HOP_POINTER,
    POINTER_COUNT,
    CogQAConfig,
    PointedSpan,
    best_spans,
    pointer_log_probs,
    pointer_loss,
)
from lmlab.layers.stack import LayerPass, Stack
from lmlab.models.finetuned import TrainingWrapper
from lmlab.models.masked_lm import MaskedLM


class GraphNetwork(nn.Module):
    """Graph network with `rounds` of message passing by shared weights (Ding et al. 2019).

        Δ  = σ((A D⁻¹)ᵀ σ(X W₁))
        X' = σ(X W₂ + Δ)

    X (N, W) one row per node; A (N, N) is 1 where an edge leads from i to j; D_jj = Σ_i A_ij, so
    that a node receives the mean of its predecessors, or nothing if it has none. σ is GELU. A batch
    of graphs is one block-diagonal A. Cost O(N W² + N² W) per round.
    """

    def __init__(self, width: int, *, rounds: int = 2) -> None:
        super().__init__()
        self.rounds = rounds
        self.neighbour_map = nn.Linear(width, width, bias=False)
        self.self_map = nn.Linear(width, width, bias=False)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """(N, W) from nodes (N, W) and the adjacency matrix A (N, N)."""
        adjacency = edges.to(nodes)
        incoming = (adjacency / adjacency.sum(0).clamp(min=1)).T
        for _ in range(self.rounds):
            change = F.gelu(incoming @ F.gelu(self.neighbour_map(nodes)))
            nodes = F.gelu(self.self_map(nodes) + change)
        return nodes


class NodePredictor(nn.Module):
    """MLP score F(x) = w₂ · σ(W₁ x + b₁) + b₂ of a node, or of the difference of two."""

    def __init__(self, width: int, hidden: int = 0) -> None:
        super().__init__()
        self.inner = nn.Linear(width, hidden or width)
        self.outer = nn.Linear(hidden or width, 1)

    def forward(self, values: Tensor) -> Tensor:
        """(…,) of values (…, W)."""
        scores: Tensor = self.outer(F.gelu(self.inner(values))).squeeze(-1)
        return scores


QuestionKind = Literal["special", "alternative", "yes-no"]
TOKENS_PER_BATCH = 8192
SEPARATORS = 3
"""End tokens in a reader's input: after the question, the clues and the paragraph."""
UNLIMITED_LENGTH = 10**6


@dataclass(frozen=True, kw_only=True, eq=False)
class ReaderOutput:
    """The reader's output on a batch."""

    log_probs: Tensor
    """(B, T, 4) of S_hop, E_hop, S_ans and E_ans."""
    allowed: Tensor
    """(B, T) the positions of paragraphs."""
    semantics: Tensor
    """(B, W) the semantic vector of each node: sem[x, question, clues]."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ExtractedSpans:
    """The spans that the reader extracts from one input."""

    hops: list[PointedSpan]
    answers: list[PointedSpan]
    no_answer_probability: float
    """The probability that the paragraph holds no answer: that of position 0."""
    semantics: Tensor
    """(W,)"""


class CogQAReader(TrainableSystem):
    """System 1: four span pointers on an encoder's hidden states.

        P[i] = softmax_i(S · T_i),   sem[x] = the hidden state at position 0 of an earlier layer

    Question and clues are segment A, the paragraph B. An empty paragraph has no spans, but has a
    semantic vector.
    """

    validation_metric = "loss"

    def __init__(self, base: System, settings: CogQAConfig, *, dropout: float = 0.1) -> None:
        super().__init__()
        require(base, EncodeTokens, "multi-hop question answering")
        self.vocabulary = base.vocabulary
        self.base, self.settings = base, settings
        self.end = require_end_token(base.vocabulary)
        self.dropout = nn.Dropout(dropout)
        last, inner = self._encode(_empty_input(base))
        self.pointers = nn.Linear(last.shape[-1], POINTER_COUNT, bias=False)
        self.width = int(inner.shape[-1])
        """The width of semantic vectors."""

    @property
    def window(self) -> int | None:
        return self.base.window

    @property
    def longest(self) -> int:
        """The greatest length of an input in tokens."""
        return UNLIMITED_LENGTH if self.window is None else self.window + 1

    def _parts(self, batch: Batch) -> Tensor:
        """(B, T) how many end tokens precede each position: 0 question, 1 clues, 2 paragraph."""
        ended = batch.tokens.eq(self.end).long()
        return ended.cumsum(1) - ended

    def paragraph_mask(self, batch: Batch) -> Tensor:
        """(B, T) bool: the positions of the paragraph."""
        words = batch.tokens != self.end
        return (self._parts(batch) == 2) & words & batch.mask()

    def _encode(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(B, T, W) hidden states of the last layer, and of the layer of semantic vectors."""
        base: Any = self.base
        passes: list[LayerPass] = []
        with ExitStack() as recordings:
            for module in base.modules():
                if isinstance(module, Stack):
                    recordings.enter_context(module.recorded_passes(passes))
            if isinstance(base, MaskedLM):
                segments = (self._parts(batch) >= 2).long()
                view = replace(base.objective.clean_view(batch), segments=segments)
                last = base.hidden(view).values
            else:
                last = base.encode_tokens(batch)
        layers = [values for layer_pass in passes for values in layer_pass[1:]]
        return last, layers[self._layer(len(layers))] if layers else last

    def _layer(self, layers: int) -> int:
        """The index of the layer of semantic vectors."""
        number = self.settings.semantics_layer or layers - 1
        return min(max(number, 1), layers) - 1

    def read(self, batch: Batch) -> ReaderOutput:
        last, inner = self._encode(batch)
        allowed = self.paragraph_mask(batch)
        scores = self.pointers(self.dropout(last))
        return ReaderOutput(
            log_probs=pointer_log_probs(scores, allowed), allowed=allowed, semantics=inner[:, 0]
        )

    def loss(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> tuple[Loss, State | None]:
        """Cross-entropy of the four pointers with the positions in the labels (B, 4, K)."""
        assert batch.labels is not None, "pointers need labels"
        return pointer_loss(self.read(batch).log_probs, batch.labels), None

    @torch.no_grad()
    def extract(self, inputs: Sequence[Sequence[int]]) -> list[ExtractedSpans]:
        """Spans and semantic vectors of inputs given as token ids, in their order."""
        extracted: dict[int, ExtractedSpans] = {}
        for group in group_by_length([len(tokens) for tokens in inputs], TOKENS_PER_BATCH):
            with evaluation_mode(self):
                batch = Batch.collate([inputs[index] for index in group], self.vocabulary.pad)
                output = self.read(batch.to(device_of(self)))
            for row, index in enumerate(group):
                extracted[index] = self._spans(output, row)
        return [extracted[index] for index in range(len(inputs))]

    def _spans(self, output: ReaderOutput, row: int) -> ExtractedSpans:
        log_probs, allowed = output.log_probs[row].cpu(), output.allowed[row].cpu()
        hops, answers = (
            best_spans(
                log_probs[:, kind],
                log_probs[:, kind + 1],
                allowed,
                top=self.settings.starts,
                max_length=self.settings.max_span_length,
            )
            for kind in (HOP_POINTER, ANSWER_POINTER)
        )
        return ExtractedSpans(
            hops=hops,
            answers=answers,
            no_answer_probability=float(log_probs[0, ANSWER_POINTER].exp()),
            semantics=output.semantics[row].cpu(),
        )


def _empty_input(base: System) -> Batch:
    """An input without words, from which widths are inferred."""
    ends = [base.vocabulary.bos] + [require_end_token(base.vocabulary)] * SEPARATORS
    device = next(base.parameters()).device
    return Batch.collate([ends], base.vocabulary.pad).to(device)


def require_end_token(vocabulary: Vocabulary) -> int:
    """The end token, which separates question, clues and paragraph."""
    if vocabulary.end is None:
        raise UserError("multi-hop question answering needs a tokenizer with an end token.")
    return vocabulary.end


class CogQA(nn.Module):
    """The reader, the graph network over its nodes, and a predictor for each kind of question.

    special:      argmax_{candidate x} F(X[x]),        trained by -log softmax(F(X))[answer]
    alternative:  the first entity if F_a(X[x] - X[y]) > 0, else the second
    yes or no:    yes if F_y(X[x] - X[y]) > 0
    """

    def __init__(self, reader: CogQAReader) -> None:
        super().__init__()
        settings, width = reader.settings, reader.width
        self.vocabulary = reader.vocabulary
        self.reader = reader
        self.network = GraphNetwork(width, rounds=settings.graph_steps)
        self.special = NodePredictor(width, settings.predictor_width)
        self.alternative = NodePredictor(width, settings.predictor_width)
        self.yes_no = NodePredictor(width, settings.predictor_width)

    @property
    def settings(self) -> CogQAConfig:
        return self.reader.settings

    @property
    def base(self) -> System:
        """The reader's encoder."""
        return self.reader.base

    def propagate(self, semantics: Tensor, adjacency: Tensor) -> Tensor:
        """(N, W) node states after message passing."""
        states: Tensor = self.network(semantics, adjacency.to(semantics.device))
        return states

    def scores(self, nodes: Tensor, kind: QuestionKind, candidates: Sequence[int]) -> Tensor:
        """(C,) scores of candidate answers; or one number, the log-odds of the first of two
        entities, or of yes."""
        if kind == "special":
            scores: Tensor = self.special(nodes[list(candidates)])
            return scores
        first, second = candidates[:2]
        predictor = self.alternative if kind == "alternative" else self.yes_no
        scores = predictor(nodes[first] - nodes[second])
        return scores


def answer_loss(scores: Tensor, kind: QuestionKind, target: int) -> Tensor:
    """Minus the log-probability of the right answer."""
    if kind == "special":
        return -torch.log_softmax(scores, 0)[target]
    # An alternative's target is the index of the right entity, so that 0 is the first of the two.
    yes = target == 1 if kind == "yes-no" else target == 0
    return F.softplus(-scores if yes else scores)


class TrainingGraph(Protocol):
    """A cognitive graph with the target of its question."""

    @property
    def inputs(self) -> Sized:
        """One per node."""
        ...

    @property
    def adjacency(self) -> Tensor:
        """(N, N)"""
        ...

    @property
    def kind(self) -> QuestionKind: ...

    @property
    def candidates(self) -> Sequence[int]: ...

    @property
    def target(self) -> int: ...

    @property
    def semantics(self) -> Tensor | None:
        """(N, W) the reader's semantic vectors, where the reader is frozen."""
        ...


def block_diagonal(graphs: Sequence[TrainingGraph]) -> Tensor:
    """(N, N) the adjacency matrices of several graphs on the diagonal of one."""
    blocks: Tensor = torch.block_diag(*(graph.adjacency for graph in graphs))
    return blocks


class CogQANodeTraining(TrainingWrapper):
    """The second training stage: the nodes of gold graphs and of expanded graphs.

    Its batches are nodes, `rows` the numbers of their graphs. The reader is frozen, and its
    semantic vectors are those stored in the examples; with `together` it is trained too, by the
    spans and by the answers.
    """

    wrapped = "system"

    def __init__(self, model: CogQA, examples: Sequence[TrainingGraph]) -> None:
        super().__init__()
        self.vocabulary = model.vocabulary
        self.system = model
        self.examples = examples
        self.together = model.settings.joint_training
        model.reader.requires_grad_(self.together)

    @property
    def window(self) -> int | None:
        return self.system.reader.window

    def loss(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> tuple[Loss, State | None]:
        graphs = [self.examples[number] for number in batch.rows.unique_consecutive().tolist()]
        spans: Loss | None = None
        if self.together:
            assert batch.labels is not None
            output = self.system.reader.read(batch)
            spans, semantics = pointer_loss(output.log_probs, batch.labels), output.semantics
        else:
            stored = [graph.semantics for graph in graphs if graph.semantics is not None]
            assert len(stored) == len(graphs), "a frozen reader has encoded all nodes before"
            semantics = torch.cat(stored).to(batch.tokens.device)
        nodes = self.system.propagate(semantics, block_diagonal(graphs))
        total, offset = nodes.new_zeros(()), 0
        for graph in graphs:
            graph_nodes = nodes[offset : offset + len(graph.inputs)]
            scores = self.system.scores(graph_nodes, graph.kind, graph.candidates)
            total = total + answer_loss(scores, graph.kind, graph.target)
            offset += len(graph.inputs)
        count = torch.tensor(float(len(graphs)), device=total.device)
        answers = Loss(total, count)
        if spans is None:
            return answers, None
        return Loss(total + spans.total, count, {"answers": answers, "spans": spans}), None
