"""Mentions of entities in a batch, as memories look them up."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NO_ENTITY = -1
"""Marks places outside of mentions, mentions of which nothing is told, and missing candidates."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Spans:
    """M mentions in the rows of a view, in reading order, each with at most C candidates."""

    rows: Tensor
    """(M,) the row of each mention."""
    first: Tensor
    """(M,) the place of its first token."""
    last: Tensor
    """(M,) the place of its last token."""
    entities: Tensor
    """(M,) the entity that it truly names, NO_ENTITY where that is not told."""
    candidates: Tensor
    """(M, C) entities that it may name, NO_ENTITY where there are fewer; C may be 0."""
    priors: Tensor
    """(M, C) how often the words name each of them, whatever the context; 0 where there is none."""

    def __len__(self) -> int:
        return self.rows.shape[0]


@dataclass(frozen=True, kw_only=True)
class Linked:
    """A mention in a batch, and the entity that a system takes it for."""

    row: int
    first: int
    """The place of its first token in the batch."""
    last: int
    """The place of its last token."""
    entity: int
    """The entity's number in the system's knowledge; NO_ENTITY where it is taken for none."""
    probability: float
    """Of that entity given the mention, among those that it might be; of none, how sure that is."""


def told_spans(entities: Tensor) -> Spans:
    """The mentions that a corpus tells of, without candidates.

    `entities` (B, T) is the entity that covers each place, NO_ENTITY where none does; two mentions
    of one entity that touch are one.
    """
    before = torch.nn.functional.pad(entities, (1, 0), value=NO_ENTITY)[:, :-1]
    after = torch.nn.functional.pad(entities, (0, 1), value=NO_ENTITY)[:, 1:]
    inside = entities != NO_ENTITY
    rows, first = (inside & (before != entities)).nonzero(as_tuple=True)
    _, last = (inside & (after != entities)).nonzero(as_tuple=True)
    none = torch.zeros(len(rows), 0, device=entities.device)
    return Spans(
        rows=rows,
        first=first,
        last=last,
        entities=entities[rows, first],
        candidates=none.long(),
        priors=none,
    )
