"""KnowBERT (Peters et al. 2019): BERT with knowledge attention; staged training, entity linking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lmlab.backbones.memory_transformer import MemoryTransformer
from lmlab.core.batch import Batch
from lmlab.core.entity_mentions import MentionLink, MentionSpans
from lmlab.core.loss import Loss
from lmlab.core.parts import Emission
from lmlab.core.state import State
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.vocabulary import Vocabulary
from lmlab.knowledge.joined_knowledge import KnowledgePart
from lmlab.knowledge.knowledge_attention import KnowledgeAttention
from lmlab.knowledge.knowledge_base import KnowledgeBase
from lmlab.models.masked_lm import BERT
from lmlab.objectives.entity_linking_loss import EntityLinkingMLM


class KnowBERT(BERT):
    """KnowBERT: a masked LM with a knowledge component for each knowledge base between its layers.

    For the first `linking_steps` of its objective only the entity linkers are trained, on the
    annotated mentions; then the projection from entities back to words is set to the pseudo-inverse
    of the projection to entities (`KnowledgeAttention.align`), and all parameters are trained.
    """

    objective: EntityLinkingMLM
    _is_continued = False

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        backbone: MemoryTransformer,
        emission: Emission,
        objective: EntityLinkingMLM,
        knowledge: KnowledgeBase,
    ) -> None:
        super().__init__(
            vocabulary=vocabulary, backbone=backbone, emission=emission, objective=objective
        )
        self.knowledge = knowledge
        """All entities; those of several knowledge bases have consecutive ids."""
        self._tokenizer: TokenizerProtocol | None = None

    @property
    def memories(self) -> list[KnowledgeAttention]:
        """The knowledge components between layers of the backbone."""
        children = self.backbone.get_submodule("memories").children()
        return [memory for memory in children if isinstance(memory, KnowledgeAttention)]

    def linking_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the linkers, which are trained before all others."""
        return chain.from_iterable(memory.linking_parameters() for memory in self.memories)

    def setup_tokenizer(self, tokenizer: TokenizerProtocol) -> None:
        super().setup_tokenizer(tokenizer)
        self._tokenizer = tokenizer

    def begin_continued(self) -> None:
        """The entity embeddings stay, and the linker is no longer trained first and aligned."""
        super().begin_continued()
        self._is_continued = True
        self.objective.begin_continued()

    def setup_data(self, tokens: NDArray[np.generic], offsets: NDArray[np.int64]) -> None:
        """Compute the entity embeddings; the texts are not used."""
        vectors = self.backbone.get_submodule("embedding.tokens").get_parameter("weight")
        unknown = self.vocabulary.unknown
        if not self._is_continued:
            for memory in self.memories:
                memory.linker.entities.setup_vectors(self._tokenizer, vectors, unknown=unknown)
        super().setup_data(tokens, offsets)

    def begin_step(self, step: int) -> None:
        super().begin_step(step)
        linking_only = self.objective.linking_only
        if step == self.objective.linking_steps:
            for memory in self.memories:
                memory.align()
        linking_ids = {id(parameter) for parameter in self.linking_parameters()}
        for parameter in self.parameters():
            parameter.requires_grad_(not linking_only or id(parameter) in linking_ids)

    def lengthening_hint(self, tokens: int) -> str:
        assert self.window is not None
        return f"build it on a longer base ({super().lengthening_hint(tokens)} there)"

    def loss(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> tuple[Loss, State | None]:
        loss, state = super().loss(batch, state=state, generator=generator)
        if torch.is_grad_enabled() and not loss.total.requires_grad:
            # A batch without annotated mentions while the linker is trained: zero gradient.
            zero = sum(p.sum() for p in self.linking_parameters()) * 0.0
            loss = replace(loss, total=loss.total + zero)
        return loss, state

    @torch.no_grad()
    def link(self, batch: Batch) -> list[MentionLink]:
        """Entity linking: every mention of an unmasked batch with its predicted entity."""
        view = self.objective.clean_view(batch)
        outputs = self.hidden(view).memory_outputs
        links = [
            link
            for layer, spans in view.memory_spans.items()
            for link in mention_links(spans, outputs[layer], self.objective.lexicons[layer].part)
        ]
        return sorted(links, key=lambda link: (link.row, link.first, link.last))


def mention_links(
    spans: MentionSpans, outputs: Mapping[str, Tensor], part: KnowledgePart
) -> Iterator[MentionLink]:
    """The mentions with their best candidates, by ids in the joined knowledge base."""
    best = outputs["weights"].max(-1).values if len(spans) else outputs["chosen"].float()
    columns = (spans.rows, spans.first, spans.last, part.joined_ids(outputs["chosen"]), best)
    for row, first, last, entity, probability in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        yield MentionLink(
            row=row, first=first, last=last, entity=entity, probability=probability or 1.0
        )
