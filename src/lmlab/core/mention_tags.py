"""Mentions as tags of places (Ramshaw and Marcus 1995): one begins, goes on, or there is none."""

from __future__ import annotations

import torch
from torch import Tensor

from lmlab.core.mentions import NO_ENTITY, Spans

OUTSIDE, BEGINS, GOES_ON = 0, 1, 2
"""O, B and I."""


def tags_of(spans: Spans, rows: int, time: int) -> Tensor:
    """(rows, time) the tag of each place."""
    place = torch.arange(time, device=spans.rows.device)
    inside = (place >= spans.first[:, None]) & (place <= spans.last[:, None])
    tags = torch.full((rows, time), OUTSIDE, device=spans.rows.device)
    which, places = inside.nonzero(as_tuple=True)
    tags[spans.rows[which], places] = GOES_ON
    tags[spans.rows, spans.first] = BEGINS
    return tags


def tagged_spans(tags: Tensor) -> Spans:
    """The mentions that tags (B, T) mark, of which no entity is told.

    What goes on where nothing began begins there: of two readings of such tags the one that loses
    no place.
    """
    inside = tags != OUTSIDE
    before = torch.nn.functional.pad(inside, (1, 0), value=False)[:, :-1]
    starts = inside & ((tags == BEGINS) | ~before)
    over = torch.nn.functional.pad(starts | ~inside, (0, 1), value=True)[:, 1:]
    rows, first = starts.nonzero(as_tuple=True)
    _, last = (inside & over).nonzero(as_tuple=True)
    return spans_at(rows, first, last)


def spans_at(rows: Tensor, first: Tensor, last: Tensor) -> Spans:
    """Mentions at given places, without entities and candidates."""
    none = torch.zeros(len(rows), 0, device=rows.device)
    return Spans(
        rows=rows,
        first=first,
        last=last,
        entities=torch.full_like(rows, NO_ENTITY),
        candidates=none.long(),
        priors=none,
    )
