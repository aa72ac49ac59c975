"""Attention masks of an objective as grids: self, cross, two-stream, image, sparse, boundary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from lmlab.core.attention_mask import AttentionMask, LayerMask
from lmlab.core.view import NO_TARGET, View
from lmlab.inspection.input_dependence import boolean_rows
from lmlab.inspection.inspected_models import TokenNames
from lmlab.objective_figures.figure_contents import AttentionMaskGrid, TokenCell, ViewAnnotations

InputCells = Mapping[int, tuple[TokenCell, ...]]
"""Input cells at each position, by the view's `id`."""


def attention_mask_grids(
    view: View, inputs: InputCells, names: TokenNames, extras: ViewAnnotations
) -> tuple[AttentionMaskGrid, ...]:
    """All attention masks of a view."""
    if extras.joint_view is not None:
        return (_joint_stack_grid(view, extras.joint_view, inputs, names),)
    if view.decoder is not None:
        return _encoder_decoder_grids(view, view.decoder, inputs, names)
    if extras.layer_mask is not None:
        return (_layer_grid(view, extras.layer_mask, inputs, names),)
    if view.query_attention_mask is not None:
        content = _self_attention_grid("content stream", view, view.attention_mask, inputs, names)
        query = _self_attention_grid("query stream", view, view.query_attention_mask, inputs, names)
        return (replace(content, targets=("",) * len(content.rows)), query)
    grid = _self_attention_grid("attention mask", view, view.attention_mask, inputs, names)
    return (grid, *_boundary_grids(grid, extras.boundary_positions))


def _self_attention_grid(
    name: str, view: View, rule: AttentionMask, inputs: InputCells, names: TokenNames
) -> AttentionMaskGrid:
    """Self-attention mask of one view."""
    length, cells = int(view.lengths[0]), inputs[id(view)]
    allowed = rule.mask(view.lengths, view.inputs.shape[1])[0, :length, :length]
    targets = _target_names(view, names)
    return AttentionMaskGrid(
        name=name, rows=cells, columns=cells, allowed=boolean_rows(allowed), targets=targets
    )


def _encoder_decoder_grids(
    view: View, decoder: View, inputs: InputCells, names: TokenNames
) -> tuple[AttentionMaskGrid, ...]:
    decoder_grid = _self_attention_grid("decoder", decoder, decoder.attention_mask, inputs, names)
    allowed = torch.ones(len(decoder_grid.rows), int(view.lengths[0]), dtype=torch.bool)
    return (
        _self_attention_grid("encoder", view, view.attention_mask, inputs, names),
        replace(decoder_grid, show_targets=False),
        AttentionMaskGrid(
            name="cross-attention",
            rows=decoder_grid.rows,
            columns=inputs[id(view)],
            allowed=boolean_rows(allowed),
            targets=decoder_grid.targets,
        ),
    )


def _joint_stack_grid(
    view: View, stack: View, inputs: InputCells, names: TokenNames
) -> AttentionMaskGrid:
    """Mask of a joint stack: the first token, the image patches, the other tokens."""
    assert view.decoder is not None
    image, text = inputs[id(view)], inputs[id(view.decoder)]
    cells = (*text[:1], *image, *text[1:])
    first, *others = _target_names(view.decoder, names)
    mask = stack.attention_mask.mask(stack.lengths, stack.inputs.shape[1])[0]
    return AttentionMaskGrid(
        name="attention mask",
        rows=cells,
        columns=cells,
        allowed=boolean_rows(mask[: len(cells), : len(cells)]),
        targets=(first, *("" for _ in image), *others),
    )


def _layer_grid(
    view: View, layer_mask: LayerMask, inputs: InputCells, names: TokenNames
) -> AttentionMaskGrid:
    """Mask of one layer over tokens and auxiliary nodes (a relay node, memory tokens)."""
    auxiliary_nodes = tuple(TokenCell(text=name) for name in layer_mask.auxiliary_nodes)
    cells = (*inputs[id(view)], *auxiliary_nodes)
    targets = (*_target_names(view, names), *("" for _ in auxiliary_nodes))
    allowed = boolean_rows(layer_mask.allowed)
    return AttentionMaskGrid(
        name="attention mask of a layer",
        rows=cells,
        columns=cells,
        allowed=allowed,
        targets=targets,
    )


def _boundary_grids(
    grid: AttentionMaskGrid, boundaries: Mapping[int, tuple[int, ...]]
) -> list[AttentionMaskGrid]:
    """A row per target also predicted from its span's boundary (SpanBERT), and those positions."""
    if not boundaries:
        return []
    columns = range(len(grid.columns))
    return [
        AttentionMaskGrid(
            name="predicted from the span boundary",
            rows=tuple(grid.rows[position] for position in boundaries),
            columns=grid.columns,
            allowed=tuple(tuple(c in ends for c in columns) for ends in boundaries.values()),
            targets=tuple(grid.targets[position] for position in boundaries),
        )
    ]


def _target_names(view: View, names: TokenNames) -> tuple[str, ...]:
    if view.targets is None:
        return ("",) * int(view.lengths[0])
    ids = view.targets[0, : int(view.lengths[0])].tolist()
    return tuple("" if id == NO_TARGET else names.target(id) for id in ids)
