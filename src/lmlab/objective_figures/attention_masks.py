"""Attention masks of a view, one grid per kind of attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from lmlab.core.attention_mask import AttentionMask, LayerMask
from lmlab.core.view import NO_TARGET, View
from lmlab.inspection.inspected_models import TokenNames
from lmlab.objective_figures.figure_contents import AttentionMaskGrid, TokenCell, ViewAnnotations

InputCells = Mapping[int, tuple[TokenCell, ...]]
"""Input cells at each position, by the view's `id`."""


def attention_mask_grids(
    view: View, fed: InputCells, names: TokenNames, told: ViewAnnotations
) -> tuple[AttentionMaskGrid, ...]:
    """All attention masks of a view."""
    if told.joint_view is not None:
        return (_one_stack(view, told.joint_view, fed, names),)
    if view.decoder is not None:
        return _two_stacks(view, view.decoder, fed, names)
    if told.layer_mask is not None:
        return (_one_layer(view, told.layer_mask, fed, names),)
    if view.query_attention_mask is not None:
        content = _within("content stream", view, view.attention_mask, fed, names)
        query = _within("query stream", view, view.query_attention_mask, fed, names)
        return (replace(content, targets=("",) * len(content.rows)), query)
    own = _within("who may see whom", view, view.attention_mask, fed, names)
    return (own, *_from_outside(own, told.boundary_positions))


def _within(
    name: str, part: View, rule: AttentionMask, fed: InputCells, names: TokenNames
) -> AttentionMaskGrid:
    """Self-attention mask of one view."""
    length, cells = int(part.lengths[0]), fed[id(part)]
    seen = rule.mask(part.lengths, part.inputs.shape[1])[0, :length, :length]
    asked = _asked_words(part, names)
    return AttentionMaskGrid(
        name=name, rows=cells, columns=cells, allowed=_rows(seen), targets=asked
    )


def _two_stacks(
    view: View, decoder: View, fed: InputCells, names: TokenNames
) -> tuple[AttentionMaskGrid, ...]:
    own = _within("decoder", decoder, decoder.attention_mask, fed, names)
    across = torch.ones(len(own.rows), int(view.lengths[0]), dtype=torch.bool)
    return (
        _within("encoder", view, view.attention_mask, fed, names),
        replace(own, show_targets=False),
        AttentionMaskGrid(
            name="decoder looks at encoder",
            rows=own.rows,
            columns=fed[id(view)],
            allowed=_rows(across),
            targets=own.targets,
        ),
    )


def _one_stack(view: View, stack: View, fed: InputCells, names: TokenNames) -> AttentionMaskGrid:
    """Mask of a joint stack: the first token, the image patches, the other tokens."""
    assert view.decoder is not None
    image, text = fed[id(view)], fed[id(view.decoder)]
    cells = (*text[:1], *image, *text[1:])
    first, *others = _asked_words(view.decoder, names)
    seen = stack.attention_mask.mask(stack.lengths, stack.inputs.shape[1])[0]
    return AttentionMaskGrid(
        name="who may see whom",
        rows=cells,
        columns=cells,
        allowed=_rows(seen[: len(cells), : len(cells)]),
        targets=(first, *("" for _ in image), *others),
    )


def _one_layer(
    view: View, sight: LayerMask, fed: InputCells, names: TokenNames
) -> AttentionMaskGrid:
    """Mask of one layer over tokens and auxiliary nodes (a relay node, memory tokens)."""
    auxiliary_nodes = tuple(TokenCell(text=name) for name in sight.auxiliary_nodes)
    cells = (*fed[id(view)], *auxiliary_nodes)
    asked = (*_asked_words(view, names), *("" for _ in auxiliary_nodes))
    seen = _rows(sight.allowed)
    return AttentionMaskGrid(
        name="who sees whom in a layer", rows=cells, columns=cells, allowed=seen, targets=asked
    )


def _from_outside(
    own: AttentionMaskGrid, asked_from: Mapping[int, tuple[int, ...]]
) -> list[AttentionMaskGrid]:
    """A row per target also predicted from its span's boundary (SpanBERT), and those positions."""
    if not asked_from:
        return []
    columns = range(len(own.columns))
    return [
        AttentionMaskGrid(
            name="asked again from around its span",
            rows=tuple(own.rows[place] for place in asked_from),
            columns=own.columns,
            allowed=tuple(tuple(c in read for c in columns) for read in asked_from.values()),
            targets=tuple(own.targets[place] for place in asked_from),
        )
    ]


def _asked_words(view: View, names: TokenNames) -> tuple[str, ...]:
    if view.targets is None:
        return ("",) * int(view.lengths[0])
    ids = view.targets[0, : int(view.lengths[0])].tolist()
    return tuple("" if id == NO_TARGET else names.target(id) for id in ids)


def _rows(mask: Tensor) -> tuple[tuple[bool, ...], ...]:
    return tuple(tuple(bool(cell) for cell in row) for row in mask.tolist())
