"""Entity mentions: spans with candidate entities and priors, links, BIO tags to and from spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.capture import UNIT_INTERVAL, Capture

MAX_EVIDENCE = 3
"""Maximum number of facts or entities reported with an answer, the most probable."""
NO_ENTITY = -1
"""Marks positions outside of mentions, unannotated mentions, and missing candidates."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MentionSpans:
    """M mentions in the rows of a view, in row-major order, each with at most C candidates."""

    rows: Tensor
    """(M,) the row of each mention."""
    first: Tensor
    """(M,) the position of its first token."""
    last: Tensor
    """(M,) the position of its last token."""
    entities: Tensor
    """(M,) the gold entity, NO_ENTITY if not annotated."""
    candidates: Tensor
    """(M, C) candidate entities, NO_ENTITY where there are fewer; C may be 0."""
    priors: Tensor
    """(M, C) prior p(entity | words) without context; 0 where there is no candidate."""

    def __len__(self) -> int:
        return self.rows.shape[0]


@dataclass(frozen=True, kw_only=True)
class MentionLink:
    """A mention in a batch, and its predicted entity."""

    row: int
    first: int
    """The position of its first token in the batch."""
    last: int
    """The position of its last token."""
    entity: int
    """The entity's index in the system's knowledge base; NO_ENTITY if none is predicted."""
    probability: float
    """Of that entity given the mention, among the candidates; of no entity if that is predicted."""


def annotated_spans(entities: Tensor) -> MentionSpans:
    """The annotated mentions of a corpus, without candidates.

    `entities` (B, T) is the entity that covers each position, NO_ENTITY where none does; adjacent
    mentions of one entity are merged.
    """
    before = torch.nn.functional.pad(entities, (1, 0), value=NO_ENTITY)[:, :-1]
    after = torch.nn.functional.pad(entities, (0, 1), value=NO_ENTITY)[:, 1:]
    inside = entities != NO_ENTITY
    rows, first = (inside & (before != entities)).nonzero(as_tuple=True)
    _, last = (inside & (after != entities)).nonzero(as_tuple=True)
    return replace(unlinked_spans(rows, first, last), entities=entities[rows, first])


OUTSIDE, BEGIN, INSIDE = 0, 1, 2
"""O, B and I."""


def bio_tags(spans: MentionSpans, rows: int, time: int) -> Tensor:
    """(rows, time) the BIO tag of each position."""
    positions = torch.arange(time, device=spans.rows.device)
    inside = (positions >= spans.first[:, None]) & (positions <= spans.last[:, None])
    tags = torch.full((rows, time), OUTSIDE, device=spans.rows.device)
    mention, position = inside.nonzero(as_tuple=True)
    tags[spans.rows[mention], position] = INSIDE
    tags[spans.rows, spans.first] = BEGIN
    return tags


def spans_from_bio_tags(tags: Tensor) -> MentionSpans:
    """The mentions that BIO tags (B, T) mark, without entities.

    An I tag without a B before it starts a mention, so that no tagged position is lost.
    """
    inside = tags != OUTSIDE
    before = torch.nn.functional.pad(inside, (1, 0), value=False)[:, :-1]
    starts = inside & ((tags == BEGIN) | ~before)
    over = torch.nn.functional.pad(starts | ~inside, (0, 1), value=True)[:, 1:]
    rows, first = starts.nonzero(as_tuple=True)
    _, last = (inside & over).nonzero(as_tuple=True)
    return unlinked_spans(rows, first, last)


def unlinked_spans(rows: Tensor, first: Tensor, last: Tensor) -> MentionSpans:
    """Mentions at given positions, without entities and candidates."""
    empty = torch.zeros(len(rows), 0, device=rows.device)
    return MentionSpans(
        rows=rows,
        first=first,
        last=last,
        entities=torch.full_like(rows, NO_ENTITY),
        candidates=empty.long(),
        priors=empty,
    )


def mention_capture(
    batch: Batch,
    axis: str,
    starts: Sequence[Sequence[int]],
    probabilities: Tensor,
    names: Sequence[str],
    *,
    caption: str,
) -> Capture:
    """Probabilities (M, N) of M mentions as a capture, nan at other positions.

    `starts` are the row and the first position of each. Of N, only the most probable ones of some
    mention are kept; nan marks those that a mention does not have.
    """
    probabilities = probabilities.cpu()
    best = probabilities.nan_to_num(nan=-1.0).topk(min(MAX_EVIDENCE, len(names)), -1)
    selected = best.indices[best.values >= 0].unique()
    values = torch.full((*batch.tokens.shape, len(selected)), torch.nan)
    for (row, first), row_probabilities in zip(starts, probabilities[:, selected], strict=True):
        values[row, first] = row_probabilities
    return Capture(
        values=values,
        axes=("batch", "time", axis),
        caption=caption,
        names={axis: tuple(names[index] for index in selected.tolist())},
        bounds=UNIT_INTERVAL,
    )
