"""CogQA: system 1 reads, system 2 reasons on the graph (Ding et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.loss import Loss
from lmlab.core.state import State
from lmlab.core.system import System
from lmlab.layers.cogqa_config import CogQAConfig
from lmlab.layers.graph_network import GraphNetwork, NodePredictor
from lmlab.layers.span_pointers import pointer_loss
from lmlab.tasks.multihop.cogqa_reader import CogQAReader
from lmlab.tasks.multihop.graph_examples import (
    GraphExample,
    block_diagonal,
)
from lmlab.tasks.multihop.multihop_rows import QuestionKind


class CogQA(System):
    """The reader, the graph network over its nodes, and a network for each kind of question.

    special:      argmax_{candidate x} F(X[x]),        trained by -log softmax(F(X))[answer]
    alternative:  the first entity if F_a(X[x] - X[y]) > 0, else the second
    yes or no:    yes if F_y(X[x] - X[y]) > 0
    """

    def __init__(self, reader: CogQAReader) -> None:
        super().__init__()
        settings, width = reader.settings, reader.width
        self.vocabulary, self.window = reader.vocabulary, reader.window
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
        """The encoder that reads."""
        return self.reader.base

    def reason(self, semantics: Tensor, adjacency: Tensor) -> Tensor:
        """(N, W) nodes after they have heard from those before them."""
        return self.network(semantics, adjacency.to(semantics.device))

    def scores(self, nodes: Tensor, kind: QuestionKind, candidates: Sequence[int]) -> Tensor:
        """(C,) scores of candidate answers; or one number, the log-odds of the first of two
        entities, or of yes."""
        if kind == "special":
            return self.special(nodes[list(candidates)])
        first, second = candidates[:2]
        predictor = self.alternative if kind == "alternative" else self.yes_no
        return predictor(nodes[first] - nodes[second])


def answer_loss(scores: Tensor, kind: QuestionKind, target: int) -> Tensor:
    """Minus the log-probability of the right answer."""
    if kind == "special":
        return -torch.log_softmax(scores, 0)[target]
    # An alternative's target is the place of the right entity, so that 0 is the first of the two.
    yes = target == 1 if kind == "yes-no" else target == 0
    return F.softplus(-scores if yes else scores)


class CogQANodeTraining(System):
    """What the second stage trains: the nodes of right graphs and of graphs that have grown.

    Its batches are nodes, `rows` the numbers of their graphs. The reader rests, and its meanings
    are those noted in the examples; or, with `together`, it learns on, by the spans and by the
    answers. Its weights are those of the whole.
    """

    watched = "loss"

    def __init__(self, whole: CogQA, examples: Sequence[GraphExample]) -> None:
        super().__init__()
        self.vocabulary, self.window = whole.vocabulary, whole.window
        self.whole = whole
        self.examples = examples
        self.together = whole.settings.together
        whole.reader.requires_grad_(self.together)

    def state_dict(self, *args: Any, **words: Any) -> dict[str, Any]:  # type: ignore[override]
        return self.whole.state_dict(*args, **words)

    def load_state_dict(self, *args: Any, **words: Any) -> Any:
        return self.whole.load_state_dict(*args, **words)

    def loss(
        self,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        graphs = [self.examples[number] for number in batch.rows.unique_consecutive().tolist()]
        spans: Loss | None = None
        if self.together:
            assert batch.labels is not None
            reading = self.whole.reader.read(batch)
            spans, semantics = pointer_loss(reading.log_probs, batch.labels), reading.semantics
        else:
            known = [each.semantics for each in graphs if each.semantics is not None]
            assert len(known) == len(graphs), "a reader at rest has read everything before"
            semantics = torch.cat(known).to(batch.tokens.device)
        nodes = self.whole.reason(semantics, block_diagonal(graphs))
        total, first = nodes.new_zeros(()), 0
        for each in graphs:
            own = nodes[first : first + len(each.inputs)]
            scores = self.whole.scores(own, each.kind, each.candidates)
            total = total + answer_loss(scores, each.kind, each.target)
            first += len(each.inputs)
        count = torch.tensor(float(len(graphs)), device=total.device)
        answers = Loss(total, count)
        if spans is None:
            return answers, None
        return Loss(total + spans.total, count, {"answers": answers, "spans": spans}), None
