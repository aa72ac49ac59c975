"""KnowBERT: a BERT with knowledge attention and recontextualisation inside (Peters et al. 2019)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lmlab.core.batch import Batch
from lmlab.core.entity_mentions import (
    MentionLink,
)
from lmlab.core.loss import Loss
from lmlab.core.protocols import TokenizerProtocol
from lmlab.core.state import State
from lmlab.knowledge.knowledge_attention import KnowledgeAttention
from lmlab.models.masked_lm import BERT
from lmlab.objectives.entity_linking_loss import EntityLinkingMLM


class KnowBERT(BERT):
    """A masked model with knowledge between two of its layers.

    For its first `linking_steps` only the linker is trained, by the mentions that are told; then
    the way back from entities to words is set against the way there (`KnowledgeAttention.align`),
    and all is trained together.
    """

    objective: EntityLinkingMLM

    def __init__(self, *, linking_steps: int, **parts: Any) -> None:
        super().__init__(**parts)
        self.linking_steps = linking_steps
        self.knowledge = self.objective.lexicon.knowledge
        self._pieces: TokenizerProtocol | None = None

    @property
    def memory(self) -> KnowledgeAttention:
        """What stands between two layers of the backbone."""
        [memory] = self.backbone.get_submodule("memories").children()
        assert isinstance(memory, KnowledgeAttention)
        return memory

    def setup_tokenizer(self, tokenizer: TokenizerProtocol) -> None:
        super().setup_tokenizer(tokenizer)
        self._pieces = tokenizer

    def setup_data(self, tokens: NDArray[np.generic], offsets: NDArray[np.int64]) -> None:
        """Make the entities' vectors, for which the texts are not looked at."""
        vectors = self.backbone.get_submodule("embedding.tokens").get_parameter("weight")
        unknown = self.vocabulary.unknown
        self.memory.linker.entities.setup_vectors(self._pieces, vectors, unknown=unknown)
        super().setup_data(tokens, offsets)

    def begin_step(self, step: int) -> None:
        super().begin_step(step)
        alone = step < self.linking_steps
        if step == self.linking_steps:
            self.memory.align()
        linker = {id(parameter) for parameter in self.memory.linking_parameters()}
        for parameter in self.parameters():
            parameter.requires_grad_(not alone or id(parameter) in linker)
        self.objective.linking_only = alone

    def loss(
        self,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        found, state = super().loss(batch, state=state, generator=generator)
        if torch.is_grad_enabled() and not found.total.requires_grad:
            # A batch of which nothing is told while the linker is trained: a gradient of zero.
            nothing = sum(p.sum() for p in self.memory.linking_parameters()) * 0.0
            found = replace(found, total=found.total + nothing)
        return found, state

    @torch.no_grad()
    def link(self, batch: Batch) -> list[MentionLink]:
        """Every mention of a clean batch and the entity that it is taken for."""
        view = self.objective.fill_view(batch, torch.zeros_like(batch.tokens, dtype=torch.bool))
        [found] = self.hidden(view).memory_outputs.values()
        spans = view.spans
        assert spans is not None
        best = found["weights"].max(-1).values if len(spans) else found["chosen"].float()
        columns = (spans.rows, spans.first, spans.last, found["chosen"], best)
        return [
            MentionLink(
                row=row, first=first, last=last, entity=entity, probability=probability or 1.0
            )
            for row, first, last, entity, probability in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]
