"""Contents of a `View`: clean text, inputs, targets and positions, token by token.

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
    view: View, batch: Batch, names: TokenNames, told: ViewAnnotations = NO_ANNOTATIONS
) -> ObjectiveContents:
    """Contents of a view's first row, with the clean text it was made from."""
    clean = batch.tokens[0, : int(batch.lengths[0])].tolist()
    reader = _reader(view, batch, clean)
    inputs = _inputs(reader)
    strange = {place for place, row in enumerate(_rows(reader)) if row}
    reading = align_inputs(
        # A token of another text is not masked here, even if spelled alike.
        [-1 if place in strange else id for place, id in enumerate(inputs)],
        clean,
        asked=[place for part in (view, view.prediction_view) for place in _own_origins(part)],
        clean_positions=_own_origins(reader),
        positions=_told(reader.positions),
        vocabulary=names.vocabulary,
    )
    words = [] if names.outcomes else clean
    unseen = {**_unseen(view.prediction_view, reader, words), **_unseen(view, reader, words)}
    fed = {id(part): _fed(part, names) for part in (view, view.prediction_view)}
    strange |= inputs_from_other_text(inputs, reading, _other(batch))
    fed[id(reader)] = _fed_of_text(reader, names, reading, unseen, strange)
    text = _text_strips("text", clean, reading.masked_positions(unseen, len(clean)), names)
    panels = [CellPanel(rows=text)] if reading.shift is None else []
    panels += [*_other_texts(reader, batch, names), *_images(view)]
    for name, part in _parts(view, told):
        strips = _strips(part, fed[id(part)], names, told)
        if part is reader and reading.shift is not None:
            strips = _beside(text, strips, reading.shift)
        panels.append(CellPanel(name=name, rows=strips))
    return ObjectiveContents(
        panels=tuple(panels),
        matrices=attention_mask_grids(view, fed, names, told),
        notes=_remarks(view) if told.notes is None else told.notes,
    )


def _parts(view: View, told: ViewAnnotations) -> list[tuple[str, View]]:
    """The encoded parts by name; an image has its own panel."""
    if view.decoder is None:
        return [("", view)]
    if told.joint_view is None:
        return [("encoder", view), ("decoder", view.decoder)]
    return [("", view), ("text", view.decoder)]


def _other(batch: Batch) -> list[int]:
    """The tokens of the second row, if there is one."""
    return [] if len(batch) < 2 else batch.tokens[1, 1 : int(batch.lengths[1]) - 1].tolist()


def _other_texts(view: View, batch: Batch, names: TokenNames) -> list[CellPanel]:
    """The clean texts of other batch rows that tokens were taken from."""
    rows, inputs, clean_positions = _rows(view), _inputs(view), _origins(view)
    targets = [] if view.targets is None else view.targets[0].tolist()
    panels = []
    for other in sorted({row for row in rows if row}):
        hidden = frozenset(
            clean_positions[place]
            for place, row in enumerate(rows)
            if row == other and clean_positions[place] >= 0 and inputs[place] != targets[place]
        )
        ids = batch.tokens[other, : int(batch.lengths[other])].tolist()
        panels.append(CellPanel(rows=_text_strips("other text", ids, hidden, names)))
    return panels


def _unseen(asked: View, reader: View, clean: Sequence[int]) -> dict[int, set[int]]:
    """By target position of the clean text: the inputs masked from its prediction.

    A decoder attends to all encoder inputs. A target other than the clean token at its origin comes
    from another text; without `clean`, targets are not tokens.
    """
    if asked.clean_positions is None or asked.targets is None:
        return {}
    length = _length(asked)
    rule = asked.query_attention_mask or asked.attention_mask
    mask = rule.mask(asked.lengths, asked.inputs.shape[1])[0, :length, :length]
    found: dict[int, set[int]] = {}
    clean_positions = _own_origins(asked)
    for place in range(length):
        origin, target = clean_positions[place], int(asked.targets[0, place])
        own_word = not clean or (origin < len(clean) and clean[origin] == target)
        if origin >= 0 and target != NO_TARGET and own_word:
            own = (~mask[place]).nonzero()[:, 0].tolist() if asked is reader else []
            found[origin] = set(own) & found.get(origin, set(own))
    return found


def _reader(view: View, batch: Batch, clean: Sequence[int]) -> View:
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


def _told(values: Tensor | None) -> list[int] | None:
    """The first row as a list, if it has one number per position."""
    return None if values is None or values.ndim != 2 else [int(each) for each in values[0]]


def _origins(view: View) -> list[int]:
    """Clean-text position of each position's target, -1 for no target."""
    if view.clean_positions is None or view.targets is None:
        return []
    told = view.clean_positions[0].masked_fill(view.targets[0] == NO_TARGET, -1)
    return [int(each) for each in told]


def _rows(view: View) -> list[int]:
    """The batch row that each position comes from, 0 being its own; empty if unknown."""
    told = view.clean_rows
    return [] if told is None else told[0, : _length(view)].tolist()


def _own_origins(view: View) -> list[int]:
    """Origins in the clean text itself, -1 if a target is of another text."""
    clean_positions, rows = _origins(view), _rows(view)
    return [
        -1 if row else origin for origin, row in zip(clean_positions, rows, strict=False)
    ] or clean_positions


def _text_strips(
    name: str, clean: Sequence[int], hidden: frozenset[int], names: TokenNames
) -> tuple[CellRow, ...]:
    words = (
        TokenCell(text=names.name(id), style="hidden" if place in hidden else "plain")
        for place, id in enumerate(clean)
    )
    return (
        CellRow(name="place", cells=_numbers(range(len(clean)))),
        CellRow(name=name, cells=tuple(words)),
    )


def _numbers(values: Sequence[int] | range) -> tuple[TokenCell, ...]:
    return tuple(TokenCell(text=str(value), style="number") for value in values)


def _beside(
    text: tuple[CellRow, ...], strips: tuple[CellRow, ...], shift: int
) -> tuple[CellRow, ...]:
    """Both over the same columns: input t below position t + shift of the text."""
    moved = [(None,) * shift + strip.cells for strip in strips]
    columns = max(len(cells) for cells in (*(strip.cells for strip in text), *moved))
    named = [*text, *(CellRow(name=s.name, cells=c) for s, c in zip(strips, moved, strict=True))]
    return tuple(
        CellRow(name=strip.name, cells=strip.cells + (None,) * (columns - len(strip.cells)))
        for strip in named
    )


def _fed(view: View, names: TokenNames) -> tuple[TokenCell, ...]:
    """Input cells of a view that contains clean tokens only by teacher forcing."""
    if view.inputs.ndim != 2:
        pixels = _pixels(view.inputs[0, : _length(view)])
        return tuple(
            TokenCell(text=f"patch {place}", pixels=patch) for place, patch in enumerate(pixels, 1)
        )
    inputs = _inputs(view)
    back = teacher_forced_inputs(inputs, _told(view.targets))
    return tuple(
        TokenCell(text=names.name(id), style="answer" if place in back else "plain")
        if not replaces_words(id, names.vocabulary)
        else TokenCell(text=names.name(id), style="mask")
        for place, id in enumerate(inputs)
    )


def _fed_of_text(
    view: View,
    names: TokenNames,
    reading: InputAlignment,
    unseen: dict[int, set[int]],
    strange: Collection[int],
) -> tuple[TokenCell, ...]:
    """Input cells of the view made from the clean text."""
    if view.inputs.ndim != 2:
        return _fed(view, names)
    inputs = _inputs(view)
    answers = reading.answers(unseen)
    replaced = _replaced(view)
    cells = []
    for place, id in enumerate(inputs):
        look: CellStyle = "plain"
        if replaces_words(id, names.vocabulary):
            look = "mask"
        elif place in answers:
            look = "answer"
        elif place in strange and place not in replaced:
            look = "other"
        elif reading.positions[place] < 0 and not _is_frame(id, names):
            look = "changed"
        cells.append(TokenCell(text=names.name(id), style=look))
    return tuple(cells)


def _replaced(view: View) -> set[int]:
    """Positions of another text whose input differs from the target."""
    if view.targets is None:
        return set()
    pairs = zip(_inputs(view), view.targets[0].tolist(), _rows(view), strict=False)
    return {t for t, (fed, asked, row) in enumerate(pairs) if row and asked not in (fed, NO_TARGET)}


def _is_frame(id: int, names: TokenNames) -> bool:
    vocabulary = names.vocabulary
    return id in (vocabulary.start, vocabulary.end, vocabulary.first, vocabulary.pad)


def _strips(
    view: View, fed: tuple[TokenCell, ...], names: TokenNames, told: ViewAnnotations
) -> tuple[CellRow, ...]:
    """All rows that describe a view's positions."""
    length = _length(view)
    strips = [CellRow(name="fed", cells=fed), *_positions(view, told)]
    for name, values in (("segment", view.segments), ("turn", view.order)):
        if values is not None:
            strips.append(CellRow(name=name, cells=_numbers(values[0, :length].tolist())))
    if view.mentions is not None and bool((view.mentions[0, :length] >= 0).any()):
        mentions = view.mentions[0, :length].tolist()
        strips.append(CellRow(name="mention", cells=_where(mentions, told.mention_name)))
    if view.targets is not None:
        strips += _asked_strips(view, names)
    if told.boundary_positions:
        ends = {place: ", ".join(map(str, read)) for place, read in told.boundary_positions.items()}
        cells = (
            TokenCell(text=ends[t], style="number") if t in ends else None for t in range(length)
        )
        strips.append(CellRow(name="from around", cells=tuple(cells)))
    if view.labels is not None and view.labels.ndim == 2:
        strips.append(CellRow(name="label", cells=_numbers(view.labels[0, :length].tolist())))
    return tuple(strips)


def _positions(view: View, told: ViewAnnotations) -> list[CellRow]:
    length = _length(view)
    if told.joint_view is not None:
        # A joint stack numbers positions through: the first token, the patches, the other tokens.
        patches = int(told.joint_view.lengths[0]) - length
        is_image = view.decoder is not None
        words = (0, *range(patches + 1, patches + length))
        counted = tuple(range(1, length + 1)) if is_image else words
        return [CellRow(name="position", cells=_numbers(counted))]
    if view.positions is None:
        return [CellRow(name="position", cells=_numbers(range(length)))]
    found = view.positions[0, :length]
    if found.ndim == 1:
        return [CellRow(name="position", cells=_numbers(found.tolist()))]
    return [
        CellRow(name=f"position {each + 1}", cells=_numbers(found[:, each].tolist()))
        for each in range(found.shape[1])
    ]


def _asked_strips(view: View, names: TokenNames) -> list[CellRow]:
    assert view.targets is not None
    length = _length(view)
    targets = view.targets[0, :length]
    words = tuple(
        None if id == NO_TARGET else TokenCell(text=names.target(id), style="target")
        for id in targets.tolist()
    )
    strips = [CellRow(name="target", cells=words)]
    if view.clean_positions is not None:
        strips.append(CellRow(name="from place", cells=_places_of_origin(view)))
    if view.weights is not None:
        weights = view.weights[0, :length]
        asked = targets != NO_TARGET
        if bool((weights[asked] != 1).any()):
            cells = (
                TokenCell(text=f"{weight:.2g}", style="number") if told else None
                for weight, told in zip(weights.tolist(), asked.tolist(), strict=True)
            )
            strips.append(CellRow(name="weight", cells=tuple(cells)))
    return strips


def _places_of_origin(view: View) -> tuple[TokenCell | None, ...]:
    """Origin of each target, and whether it is in another text."""
    clean_positions, rows = _where(_origins(view)[: _length(view)]), _rows(view)
    return tuple(
        replace(cell, text=f"other {cell.text}") if cell is not None and rows and rows[t] else cell
        for t, cell in enumerate(clean_positions)
    )


def _where(values: Sequence[int], name: Callable[[int], str] = str) -> tuple[TokenCell | None, ...]:
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
    whole = TokenCell(text="image", pixels=tuple(tuple(row) for row in rows.tolist()))
    return [CellPanel(name="image", rows=(CellRow(name="given", cells=(whole,)),))]


def _remarks(view: View) -> tuple[str, ...]:
    found = []
    for part in (view, view.decoder):
        told = None if part is None else part.labels
        if told is not None and told.ndim == 1 and int(told[0]) != NO_TARGET:
            found.append(f"Label of the whole text: {int(told[0])}.")
    return tuple(found)
