"""Masked tokens with the mentions of entities around them, and which entity each names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.loss import Loss
from lmlab.core.mentions import NO_ENTITY, Linked, Spans
from lmlab.core.parts import Hidden, Network, weighted_loss
from lmlab.core.protocols import Pieces
from lmlab.core.state import State
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.knowledge.entity_models import of_mentions
from lmlab.knowledge.lexicon import Lexicon
from lmlab.knowledge.recontextualising import KnowledgeAttention
from lmlab.objectives.linking import LinkingLoss, linking_loss
from lmlab.objectives.masked import MaskedModel, MaskedTokens
from lmlab.objectives.masking import Choice, Repeats, Replacement, ordinary_places


class LinkedMasking(MaskedTokens):
    """-Σ_{t hidden} log p(s_t | what is shown) + Σ_{m told} L_EL(m) (Peters et al. 2019).

    Mentions are found in the clean text by the lexicon, but for what is hidden: a mention with a
    hidden token is none. (The paper keeps it with a [MASK] entity as its candidate, which tells
    that the hidden word is in the lexicon, and where a name of several words begins and ends.) So
    views are the same in training and where blanks are filled in. While `alone`, training loses by
    the linking alone.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        choice: Choice,
        replacement: Replacement,
        *,
        lexicon: Lexicon,
        linking: LinkingLoss,
        weight: float = 1.0,
        repeats: Repeats | None = None,
    ) -> None:
        super().__init__(vocabulary, choice, replacement, repeats=repeats)
        self.lexicon = lexicon
        self.linking = linking
        self.weight = weight
        self.alone = False

    def meet_tokenizer(self, pieces: Pieces) -> None:
        self.lexicon.meet(pieces, unknown=self.vocabulary.unknown)

    def view(self, batch: Batch, *, generator: torch.Generator | None = None) -> View:
        view = super().view(batch, generator=generator)
        assert view.targets is not None
        return replace(view, spans=self.find(batch, view.targets != NO_TARGET))

    def fill_view(self, batch: Batch, masked: Tensor) -> View:
        return replace(super().fill_view(batch, masked), spans=self.find(batch, masked))

    def find(self, batch: Batch, hidden: Tensor) -> Spans:
        """The mentions of a clean batch that have no place of `hidden` (B, T) in them."""
        return self.lexicon.find(batch, ordinary_places(batch, self.vocabulary) & ~hidden)

    def loss(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        """Of the hidden tokens and of the mentions that are told, for each hidden token."""
        view = self.view(batch, generator=generator)
        hidden = network.hidden(view, state)
        linked = self._linked(view, hidden)
        if self.alone and self.training:
            return Loss(linked.total, linked.count, {"linking": linked}), None
        masked = weighted_loss(view, network.predict(view, hidden))
        total = masked.total + self.weight * linked.total
        return Loss(total, masked.count, {"masked": masked, "linking": linked}), None

    def _linked(self, view: View, hidden: Hidden) -> Loss:
        assert view.spans is not None
        [found] = hidden.recalled.values()
        return linking_loss(self.linking, found["scores"], view.spans)

    def reveal(self, network: Network, batch: Batch) -> dict[str, Capture]:
        """How sure each mention of the clean text is of its candidates."""
        view = self.fill_view(batch, torch.zeros_like(batch.tokens, dtype=torch.bool))
        [found] = network.hidden(view).recalled.values()
        spans = view.spans
        assert spans is not None
        # Of mentions with the same first word the longest, which comes last.
        longest = torch.ones_like(spans.rows, dtype=torch.bool)
        longest[:-1] = (spans.rows.diff() != 0) | (spans.first.diff() != 0)
        places = torch.stack([spans.rows[longest], spans.first[longest]], -1)
        entities = self.lexicon.knowledge.entities
        links = of_mentions(
            batch,
            "entity",
            places.tolist(),
            _by_entity(spans.candidates[longest], found["weights"][longest], len(entities)),
            [entity.title or entity.name for entity in entities],
            reading="The mentions that were found, by their first word, and p(entity) of each "
            "among its candidates.",
        )
        return {"linked mentions": links}


def _by_entity(candidates: Tensor, weights: Tensor, entities: int) -> Tensor:
    """(M, N) weights (M, C) of candidates (M, C) at their entities, nan at all others."""
    real = candidates != NO_ENTITY
    shares = weights.new_full((len(candidates), entities), torch.nan)
    shares[real.nonzero()[:, 0], candidates[real]] = weights.detach()[real]
    return shares


class LinkedModel(MaskedModel):
    """A masked model with knowledge between two of its layers.

    For its first `linking_steps` only the linker is trained, by the mentions that are told; then
    the way back from entities to words is set against the way there (`KnowledgeAttention.align`),
    and all is trained together.
    """

    objective: LinkedMasking

    def __init__(self, *, linking_steps: int, **parts: Any) -> None:
        super().__init__(**parts)
        self.linking_steps = linking_steps
        self.knowledge = self.objective.lexicon.knowledge
        self._pieces: Pieces | None = None

    @property
    def memory(self) -> KnowledgeAttention:
        """What stands between two layers of the backbone."""
        [memory] = self.backbone.get_submodule("memories").children()
        assert isinstance(memory, KnowledgeAttention)
        return memory

    def meet_tokenizer(self, tokenizer: Pieces) -> None:
        super().meet_tokenizer(tokenizer)
        self._pieces = tokenizer

    def meet_data(self, tokens: NDArray[np.generic], offsets: NDArray[np.int64]) -> None:
        """Make the entities' vectors, for which the texts are not looked at."""
        vectors = self.backbone.get_submodule("embedding.tokens").get_parameter("weight")
        unknown = self.vocabulary.unknown
        self.memory.linker.entities.meet(self._pieces, vectors, unknown=unknown)
        super().meet_data(tokens, offsets)

    def begin_step(self, step: int) -> None:
        super().begin_step(step)
        alone = step < self.linking_steps
        if step == self.linking_steps:
            self.memory.align()
        linker = {id(parameter) for parameter in self.memory.linking_parameters()}
        for parameter in self.parameters():
            parameter.requires_grad_(not alone or id(parameter) in linker)
        self.objective.alone = alone

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
    def link(self, batch: Batch) -> list[Linked]:
        """Every mention of a clean batch and the entity that it is taken for."""
        view = self.objective.fill_view(batch, torch.zeros_like(batch.tokens, dtype=torch.bool))
        [found] = self.hidden(view).recalled.values()
        spans = view.spans
        assert spans is not None
        best = found["weights"].max(-1).values if len(spans) else found["chosen"].float()
        columns = (spans.rows, spans.first, spans.last, found["chosen"], best)
        return [
            Linked(row=row, first=first, last=last, entity=entity, probability=probability or 1.0)
            for row, first, last, entity, probability in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]
