"""Mentions as tags of places (Ramshaw and Marcus 1995): one begins, goes on, or there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.capture import UNIT_INTERVAL, Capture

MAX_EVIDENCE = 3
"""Facts or entities that an answer rests on which are told, the surest."""


NO_ENTITY = -1
"""Marks places outside of mentions, mentions of which nothing is told, and missing candidates."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MentionSpans:
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
class MentionLink:
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


def annotated_spans(entities: Tensor) -> MentionSpans:
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
    return MentionSpans(
        rows=rows,
        first=first,
        last=last,
        entities=entities[rows, first],
        candidates=none.long(),
        priors=none,
    )


OUTSIDE, BEGIN, INSIDE = 0, 1, 2
"""O, B and I."""


def bio_tags(spans: MentionSpans, rows: int, time: int) -> Tensor:
    """(rows, time) the tag of each place."""
    place = torch.arange(time, device=spans.rows.device)
    inside = (place >= spans.first[:, None]) & (place <= spans.last[:, None])
    tags = torch.full((rows, time), OUTSIDE, device=spans.rows.device)
    which, places = inside.nonzero(as_tuple=True)
    tags[spans.rows[which], places] = INSIDE
    tags[spans.rows, spans.first] = BEGIN
    return tags


def spans_from_bio_tags(tags: Tensor) -> MentionSpans:
    """The mentions that tags (B, T) mark, of which no entity is told.

    What goes on where nothing began begins there: of two readings of such tags the one that loses
    no place.
    """
    inside = tags != OUTSIDE
    before = torch.nn.functional.pad(inside, (1, 0), value=False)[:, :-1]
    starts = inside & ((tags == BEGIN) | ~before)
    over = torch.nn.functional.pad(starts | ~inside, (0, 1), value=True)[:, 1:]
    rows, first = starts.nonzero(as_tuple=True)
    _, last = (inside & over).nonzero(as_tuple=True)
    return unlinked_spans(rows, first, last)


def unlinked_spans(rows: Tensor, first: Tensor, last: Tensor) -> MentionSpans:
    """Mentions at given places, without entities and candidates."""
    none = torch.zeros(len(rows), 0, device=rows.device)
    return MentionSpans(
        rows=rows,
        first=first,
        last=last,
        entities=torch.full_like(rows, NO_ENTITY),
        candidates=none.long(),
        priors=none,
    )


def mention_capture(
    batch: Batch,
    axis: str,
    places: Sequence[Sequence[int]],
    shares: Tensor,
    names: Sequence[str],
    *,
    reading: str,
) -> Capture:
    """Shares (M, N) of M mentions as a capture, nothing at other places.

    `places` are the row and the first place of each. Of N the likeliest of some mention are kept;
    a share of nan is one that the mention does not have.
    """
    shares = shares.cpu()
    best = shares.nan_to_num(nan=-1.0).topk(min(MAX_EVIDENCE, len(names)), -1)
    kept = best.indices[best.values >= 0].unique()
    values = torch.full((*batch.tokens.shape, len(kept)), torch.nan)
    for (row, place), each in zip(places, shares[:, kept], strict=True):
        values[row, place] = each
    return Capture(
        values=values,
        axes=("batch", "time", axis),
        caption=reading,
        names={axis: tuple(names[number] for number in kept.tolist())},
        bounds=UNIT_INTERVAL,
    )
