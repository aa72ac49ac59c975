"""Who may see whom in a view, as squares: one matrix for each way of looking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from lmlab.core.attention_mask import LayerSight, Visibility
from lmlab.core.view import NO_TARGET, View
from lmlab.objective_figures.figure_contents import (
    Cell,
    Matrix,
    Names,
    Told,
)

Fed = Mapping[int, tuple[Cell, ...]]
"""What stands at each place, by the view's `id`."""


def matrices_of(view: View, fed: Fed, names: Names, told: Told) -> tuple[Matrix, ...]:
    """Every way of looking that a view has."""
    if told.stack is not None:
        return (_one_stack(view, told.stack, fed, names),)
    if view.decoder is not None:
        return _two_stacks(view, view.decoder, fed, names)
    if told.sight is not None:
        return (_one_layer(view, told.sight, fed, names),)
    if view.query_visibility is not None:
        content = _within("content stream", view, view.visibility, fed, names)
        query = _within("query stream", view, view.query_visibility, fed, names)
        return (replace(content, asked=("",) * len(content.rows)), query)
    own = _within("who may see whom", view, view.visibility, fed, names)
    return (own, *_from_outside(own, told.asked_from))


def _within(name: str, part: View, rule: Visibility, fed: Fed, names: Names) -> Matrix:
    """The places of one view among themselves."""
    length, cells = int(part.lengths[0]), fed[id(part)]
    seen = rule.mask(part.lengths, part.inputs.shape[1])[0, :length, :length]
    asked = _asked_words(part, names)
    return Matrix(name=name, rows=cells, columns=cells, seen=_rows(seen), asked=asked)


def _two_stacks(view: View, decoder: View, fed: Fed, names: Names) -> tuple[Matrix, ...]:
    own = _within("decoder", decoder, decoder.visibility, fed, names)
    across = torch.ones(len(own.rows), int(view.lengths[0]), dtype=torch.bool)
    return (
        _within("encoder", view, view.visibility, fed, names),
        replace(own, told=False),
        Matrix(
            name="decoder looks at encoder",
            rows=own.rows,
            columns=fed[id(view)],
            seen=_rows(across),
            asked=own.asked,
        ),
    )


def _one_stack(view: View, stack: View, fed: Fed, names: Names) -> Matrix:
    """The first token, the patches of an image, the other tokens."""
    assert view.decoder is not None
    image, text = fed[id(view)], fed[id(view.decoder)]
    cells = (*text[:1], *image, *text[1:])
    first, *others = _asked_words(view.decoder, names)
    seen = stack.visibility.mask(stack.lengths, stack.inputs.shape[1])[0]
    return Matrix(
        name="who may see whom",
        rows=cells,
        columns=cells,
        seen=_rows(seen[: len(cells), : len(cells)]),
        asked=(first, *("" for _ in image), *others),
    )


def _one_layer(view: View, sight: LayerSight, fed: Fed, names: Names) -> Matrix:
    """Words, and what the network puts beside them, in one layer."""
    helpers = tuple(Cell(text=name) for name in sight.helpers)
    cells = (*fed[id(view)], *helpers)
    asked = (*_asked_words(view, names), *("" for _ in helpers))
    seen = _rows(sight.allowed)
    return Matrix(
        name="who sees whom in a layer", rows=cells, columns=cells, seen=seen, asked=asked
    )


def _from_outside(own: Matrix, asked_from: Mapping[int, tuple[int, ...]]) -> list[Matrix]:
    """A row for each target that is asked again, and the places that it is asked from."""
    if not asked_from:
        return []
    columns = range(len(own.columns))
    return [
        Matrix(
            name="asked again from around its span",
            rows=tuple(own.rows[place] for place in asked_from),
            columns=own.columns,
            seen=tuple(tuple(c in read for c in columns) for read in asked_from.values()),
            asked=tuple(own.asked[place] for place in asked_from),
        )
    ]


def _asked_words(view: View, names: Names) -> tuple[str, ...]:
    if view.targets is None:
        return ("",) * int(view.lengths[0])
    ids = view.targets[0, : int(view.lengths[0])].tolist()
    return tuple("" if id == NO_TARGET else names.target(id) for id in ids)


def _rows(mask: Tensor) -> tuple[tuple[bool, ...], ...]:
    return tuple(tuple(bool(cell) for cell in row) for row in mask.tolist())
