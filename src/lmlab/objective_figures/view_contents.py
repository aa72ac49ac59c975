"""Token cells of a `View` (an objective's batch): clean text, inputs, targets and positions.

Independent of the objective: what is masked, replaced or fed back as an input follows from
comparing the view's inputs with the clean text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from math import isqrt

from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.view import NO_TARGET, View
from lmlab.inspection.inspected_models import TokenNames
from lmlab.objective_figures.attention_masks import attention_mask_grids
from lmlab.objective_figures.figure_contents import (
    CellPanel,
    CellRow,
    CellStyle,
    ObjectiveContents,
    TokenCell,
    ViewAnnotations,
)
from lmlab.objective_figures.input_alignment import (
    InputAlignment,
    align_inputs,
    inputs_from_other_text,
    replaces_words,
    teacher_forced_inputs,
)

NO_ANNOTATIONS = ViewAnnotations()
"""For systems without annotations."""


def view_contents(
    view: View, batch: Batch, names: TokenNames, annotations: ViewAnnotations = NO_ANNOTATIONS
) -> ObjectiveContents:
    """Contents of a view's first row, with the clean text it was made from."""
    clean = batch.tokens[0, : int(batch.lengths[0])].tolist()
    source = _source_view(view, batch, clean)
    inputs = _inputs(source)
    foreign = {t for t, row in enumerate(_batch_rows(source)) if row}
    alignment = align_inputs(
        # A token of another text is not masked here, even if spelled alike.
        [-1 if t in foreign else id for t, id in enumerate(inputs)],
        clean,
        target_positions=[t for part in (view, view.prediction_view) for t in _own_origins(part)],
        clean_positions=_own_origins(source),
        positions=_first_row(source.positions),
        vocabulary=names.vocabulary,
    )
    words = [] if names.outcomes else clean
    masked = {
        **_masked_inputs(view.prediction_view, source, words),
        **_masked_inputs(view, source, words),
    }
    cells = {id(part): _input_cells(part, names) for part in (view, view.prediction_view)}
    foreign |= inputs_from_other_text(inputs, alignment, _second_text(batch))
    cells[id(source)] = _aligned_input_cells(source, names, alignment, masked, foreign)
    text = _text_rows("text", clean, alignment.masked_positions(masked, len(clean)), names)
    panels = [CellPanel(rows=text)] if alignment.shift is None else []
    panels += [*_other_texts(source, batch, names), *_images(view)]
    for name, part in _parts(view, annotations):
        rows = _view_rows(part, cells[id(part)], names, annotations)
        if part is source and alignment.shift is not None:
            rows = _side_by_side(text, rows, alignment.shift)
        panels.append(CellPanel(name=name, rows=rows))
    return ObjectiveContents(
        panels=tuple(panels),
        matrices=attention_mask_grids(view, cells, names, annotations),
        notes=_label_notes(view) if annotations.notes is None else annotations.notes,
    )


def _parts(view: View, annotations: ViewAnnotations) -> list[tuple[str, View]]:
    """The encoded parts by name; an image has its own panel."""
    if view.decoder is None:
        return [("", view)]
    if annotations.joint_view is None:
        return [("encoder", view), ("decoder", view.decoder)]
    return [("", view), ("text", view.decoder)]


def _second_text(batch: Batch) -> list[int]:
    """The tokens of the source, or of the second row, if there is one."""
    other, row = (batch, 1) if batch.condition is None else (batch.condition, 0)
    return [] if len(other) <= row else other.tokens[row, 1 : int(other.lengths[row]) - 1].tolist()


def _other_texts(view: View, batch: Batch, names: TokenNames) -> list[CellPanel]:
    """The clean texts of other batch rows that tokens were taken from."""
    rows, inputs, clean_positions = _batch_rows(view), _inputs(view), _origins(view)
    targets = [] if view.targets is None else view.targets[0].tolist()
    panels = []
    for other in sorted({row for row in rows if row}):
        masked = frozenset(
            clean_positions[t]
            for t, row in enumerate(rows)
            if row == other and clean_positions[t] >= 0 and inputs[t] != targets[t]
        )
        ids = batch.tokens[other, : int(batch.lengths[other])].tolist()
        panels.append(CellPanel(rows=_text_rows("other text", ids, masked, names)))
    return panels


def _masked_inputs(view: View, source: View, clean: Sequence[int]) -> dict[int, set[int]]:
    """By target position of the clean text: the inputs masked from its prediction.

    A decoder attends to all encoder inputs. A target other than the clean token at its origin comes
    from another text; without `clean`, targets are not tokens.
    """
    if view.clean_positions is None or view.targets is None:
        return {}
    length = _length(view)
    rule = view.query_attention_mask or view.attention_mask
    mask = rule.mask(view.lengths, view.inputs.shape[1])[0, :length, :length]
    masked: dict[int, set[int]] = {}
    clean_positions = _own_origins(view)
    for t in range(length):
        origin, target = clean_positions[t], int(view.targets[0, t])
        is_own = not clean or (origin < len(clean) and clean[origin] == target)
        if origin >= 0 and target != NO_TARGET and is_own:
            hidden = (~mask[t]).nonzero()[:, 0].tolist() if view is source else []
            masked[origin] = set(hidden) & masked.get(origin, set(hidden))
    return masked


def _source_view(view: View, batch: Batch, clean: Sequence[int]) -> View:
    """The view made from the clean text: the encoder's, unless it encodes another text."""
    if view.decoder is None:
        return view
    words = set(clean[1:-1]) & set(_inputs(view))
    return view if batch.condition is None and words else view.decoder


def _length(view: View) -> int:
    return int(view.lengths[0])


def _inputs(view: View) -> list[int]:
    """Input ids; empty if the inputs are vectors."""
    return [] if view.inputs.ndim != 2 else view.inputs[0, : _length(view)].tolist()


def _first_row(values: Tensor | None) -> list[int] | None:
    """The first row as a list, if it has one number per position."""
    return None if values is None or values.ndim != 2 else [int(value) for value in values[0]]


def _origins(view: View) -> list[int]:
    """Clean-text position of each position's target, -1 for no target."""
    if view.clean_positions is None or view.targets is None:
        return []
    origins = view.clean_positions[0].masked_fill(view.targets[0] == NO_TARGET, -1)
    return [int(origin) for origin in origins]


def _batch_rows(view: View) -> list[int]:
    """The batch row that each position comes from, 0 being its own; empty if unknown."""
    rows = view.clean_rows
    return [] if rows is None else rows[0, : _length(view)].tolist()


def _own_origins(view: View) -> list[int]:
    """Origins in the clean text itself, -1 if a target is of another text."""
    clean_positions, rows = _origins(view), _batch_rows(view)
    return [
        -1 if row else origin for origin, row in zip(clean_positions, rows, strict=False)
    ] or clean_positions


def _text_rows(
    name: str, clean: Sequence[int], masked: frozenset[int], names: TokenNames
) -> tuple[CellRow, ...]:
    words = (
        TokenCell(text=names.name(id), style="hidden" if t in masked else "plain")
        for t, id in enumerate(clean)
    )
    return (
        CellRow(name="text position", cells=_numbers(range(len(clean)))),
        CellRow(name=name, cells=tuple(words)),
    )


def _numbers(values: Sequence[int] | range) -> tuple[TokenCell, ...]:
    return tuple(TokenCell(text=str(value), style="number") for value in values)


def _side_by_side(
    text: tuple[CellRow, ...], rows: tuple[CellRow, ...], shift: int
) -> tuple[CellRow, ...]:
    """Both over the same columns: input t below position t + shift of the text."""
    shifted = [(None,) * shift + row.cells for row in rows]
    columns = max(len(cells) for cells in (*(row.cells for row in text), *shifted))
    all_rows = [*text, *(CellRow(name=s.name, cells=c) for s, c in zip(rows, shifted, strict=True))]
    return tuple(
        CellRow(name=row.name, cells=row.cells + (None,) * (columns - len(row.cells)))
        for row in all_rows
    )


def _input_cells(view: View, names: TokenNames) -> tuple[TokenCell, ...]:
    """Input cells of a view that contains clean tokens only by teacher forcing."""
    if view.inputs.ndim != 2:
        pixels = _pixels(view.inputs[0, : _length(view)])
        return tuple(
            TokenCell(text=f"patch {t}", pixels=patch) for t, patch in enumerate(pixels, 1)
        )
    inputs = _inputs(view)
    forced = teacher_forced_inputs(inputs, _first_row(view.targets))
    return tuple(
        TokenCell(text=names.name(id), style="answer" if t in forced else "plain")
        if not replaces_words(id, names.vocabulary)
        else TokenCell(text=names.name(id), style="mask")
        for t, id in enumerate(inputs)
    )


def _aligned_input_cells(
    view: View,
    names: TokenNames,
    alignment: InputAlignment,
    masked: dict[int, set[int]],
    foreign: Collection[int],
) -> tuple[TokenCell, ...]:
    """Input cells of the view made from the clean text."""
    if view.inputs.ndim != 2:
        return _input_cells(view, names)
    inputs = _inputs(view)
    answers = alignment.answers(masked)
    replaced = _replaced(view)
    cells = []
    for t, id in enumerate(inputs):
        style: CellStyle = "plain"
        if replaces_words(id, names.vocabulary):
            style = "mask"
        elif t in answers:
            style = "answer"
        elif t in foreign and t not in replaced:
            style = "other"
        elif alignment.positions[t] < 0 and not _is_boundary_token(id, names):
            style = "changed"
        cells.append(TokenCell(text=names.name(id), style=style))
    return tuple(cells)


def _replaced(view: View) -> set[int]:
    """Positions of another text whose input differs from the target."""
    if view.targets is None:
        return set()
    pairs = zip(_inputs(view), view.targets[0].tolist(), _batch_rows(view), strict=False)
    return {
        t
        for t, (token, target, row) in enumerate(pairs)
        if row and target not in (token, NO_TARGET)
    }


def _is_boundary_token(id: int, names: TokenNames) -> bool:
    vocabulary = names.vocabulary
    return id in (vocabulary.start, vocabulary.end, vocabulary.first, vocabulary.pad)


def _view_rows(
    view: View, input_cells: tuple[TokenCell, ...], names: TokenNames, annotations: ViewAnnotations
) -> tuple[CellRow, ...]:
    """All rows that describe a view's positions."""
    length = _length(view)
    rows = [CellRow(name="input", cells=input_cells), *_positions(view, annotations)]
    for name, values in (("segment", view.segments), ("order", view.order)):
        if values is not None:
            rows.append(CellRow(name=name, cells=_numbers(values[0, :length].tolist())))
    if view.mentions is not None and bool((view.mentions[0, :length] >= 0).any()):
        mentions = view.mentions[0, :length].tolist()
        rows.append(
            CellRow(name="mention", cells=_optional_cells(mentions, annotations.mention_name))
        )
    if view.targets is not None:
        rows += _target_rows(view, names)
    if annotations.boundary_positions:
        ends = {
            p: ", ".join(map(str, boundary))
            for p, boundary in annotations.boundary_positions.items()
        }
        cells = (
            TokenCell(text=ends[t], style="number") if t in ends else None for t in range(length)
        )
        rows.append(CellRow(name="boundary", cells=tuple(cells)))
    if view.labels is not None and view.labels.ndim == 2:
        rows.append(CellRow(name="label", cells=_numbers(view.labels[0, :length].tolist())))
    return tuple(rows)


def _positions(view: View, annotations: ViewAnnotations) -> list[CellRow]:
    length = _length(view)
    if annotations.joint_view is not None:
        # A joint stack numbers positions through: the first token, the patches, the other tokens.
        patches = int(annotations.joint_view.lengths[0]) - length
        is_image = view.decoder is not None
        words = (0, *range(patches + 1, patches + length))
        numbers = tuple(range(1, length + 1)) if is_image else words
        return [CellRow(name="position", cells=_numbers(numbers))]
    if view.positions is None:
        return [CellRow(name="position", cells=_numbers(range(length)))]
    positions = view.positions[0, :length]
    if positions.ndim == 1:
        return [CellRow(name="position", cells=_numbers(positions.tolist()))]
    return [
        CellRow(name=f"position {dimension + 1}", cells=_numbers(positions[:, dimension].tolist()))
        for dimension in range(positions.shape[1])
    ]


def _target_rows(view: View, names: TokenNames) -> list[CellRow]:
    assert view.targets is not None
    length = _length(view)
    targets = view.targets[0, :length]
    words = tuple(
        None if id == NO_TARGET else TokenCell(text=names.target(id), style="target")
        for id in targets.tolist()
    )
    rows = [CellRow(name="target", cells=words)]
    if view.clean_positions is not None:
        rows.append(CellRow(name="from position", cells=_origin_cells(view)))
    if view.weights is not None:
        weights = view.weights[0, :length]
        is_target = targets != NO_TARGET
        if bool((weights[is_target] != 1).any()):
            cells = (
                TokenCell(text=f"{weight:.2g}", style="number") if has_target else None
                for weight, has_target in zip(weights.tolist(), is_target.tolist(), strict=True)
            )
            rows.append(CellRow(name="weight", cells=tuple(cells)))
    return rows


def _origin_cells(view: View) -> tuple[TokenCell | None, ...]:
    """Origin of each target, and whether it is in another text."""
    clean_positions, rows = _optional_cells(_origins(view)[: _length(view)]), _batch_rows(view)
    return tuple(
        replace(cell, text=f"other {cell.text}") if cell is not None and rows and rows[t] else cell
        for t, cell in enumerate(clean_positions)
    )


def _optional_cells(
    values: Sequence[int], name: Callable[[int], str] = str
) -> tuple[TokenCell | None, ...]:
    """Numbers or their names, empty where they are -1."""
    return tuple(
        None if value < 0 else TokenCell(text=name(value), style="number") for value in values
    )


def _pixels(patches: Tensor) -> list[tuple[tuple[float, ...], ...]]:
    """Patches (P, side²) as rows of intensities; empty if they are not square."""
    side = isqrt(patches.shape[1])
    if side**2 != patches.shape[1]:
        return [()] * len(patches)
    squares = patches.view(-1, side, side).tolist()
    return [tuple(tuple(row) for row in square) for square in squares]


def _images(view: View) -> list[CellPanel]:
    """The image reassembled from a view's patches."""
    if view.inputs.ndim != 3:
        return []
    patches = view.inputs[0, : _length(view)]
    count, side = isqrt(len(patches)), isqrt(patches.shape[1])
    if count**2 != len(patches) or side**2 != patches.shape[1]:
        return []
    rows = patches.view(count, count, side, side).transpose(1, 2).reshape(count * side, -1)
    image = TokenCell(text="image", pixels=tuple(tuple(row) for row in rows.tolist()))
    return [CellPanel(name="image", rows=(CellRow(name="given", cells=(image,)),))]


def _label_notes(view: View) -> tuple[str, ...]:
    sentences = []
    for part in (view, view.decoder):
        labels = None if part is None else part.labels
        if labels is not None and labels.ndim == 1 and int(labels[0]) != NO_TARGET:
            sentences.append(f"Label of the whole text: {int(labels[0])}.")
    return tuple(sentences)
