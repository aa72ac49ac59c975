"""What an objective does with one text, word by word: its `View` made ready to be drawn.

Nothing here knows an objective's name. What is hidden, fed in its place or given back after it was
asked is found by comparing the inputs of the view with the clean text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.view import NO_TARGET, View
from lmlab.core.visibility import Visibility
from lmlab.core.vocabulary import Vocabulary
from lmlab.diagnostics.alignment import Reading, foreign, given_back, read_text, stands_in

Look = Literal["plain", "hidden", "mask", "changed", "other", "answer", "target", "number"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A word or a number, and what it is in the story."""

    text: str
    look: Look = "plain"


@dataclass(frozen=True, kw_only=True)
class Strip:
    """A line of cells; None where a column has nothing to tell."""

    name: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Strips below each other whose columns belong together."""

    name: str = ""
    strips: tuple[Strip, ...]

    def strip(self, name: str) -> Strip:
        """The one of this name."""
        return next(strip for strip in self.strips if strip.name == name)


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Who may see whom: rows ask, columns are looked at."""

    name: str
    rows: tuple[Cell, ...]
    columns: tuple[Cell, ...]
    seen: tuple[tuple[bool, ...], ...]
    asked: tuple[str, ...]
    """What is predicted at each row, "" where nothing is."""
    told: bool = True
    """Whether what is predicted is written beside the rows."""


@dataclass(frozen=True, kw_only=True)
class Showing:
    """One text as an objective shows it."""

    panels: tuple[Panel, ...]
    matrices: tuple[Matrix, ...]
    remarks: tuple[str, ...] = ()

    @property
    def looks(self) -> set[Look]:
        """What kinds of cells there are."""
        strips = (strip for panel in self.panels for strip in panel.strips)
        return {cell.look for strip in strips for cell in strip.cells if cell is not None}


@runtime_checkable
class NamesSymbols(Protocol):
    """An objective with symbols of its own, beyond the tokeniser's, that says how to call them."""

    symbols: Mapping[int, str]


@runtime_checkable
class NamesOutcomes(Protocol):
    """An emission whose outcomes are no tokens, and that says what they are."""

    outcomes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Names:
    """How ids are written."""

    token: Callable[[int], str]
    """The text of an id of the tokeniser."""
    vocabulary: Vocabulary
    """The tokeniser's; what lies beyond are symbols of the system."""
    symbols: Mapping[int, str]
    """Names of such symbols, where the objective tells them; the others are numbered."""
    outcomes: tuple[str, ...] = ()
    """What targets are called where they are no tokens."""

    def target(self, id: int) -> str:
        """What is predicted."""
        return self.outcomes[id] if self.outcomes else self.of(id)

    def of(self, id: int) -> str:
        """The text of any id."""
        if id in self.symbols:
            return self.symbols[id]
        beyond = id - self.vocabulary.size
        return self.token(id) if beyond < 0 else f"⟨{beyond + 1}⟩"


def show_view(view: View, batch: Batch, names: Names) -> Showing:
    """The first row of a view, beside the clean text it was made of."""
    clean = batch.tokens[0, : int(batch.lengths[0])].tolist()
    reader = _reader(view, batch, clean)
    reading = read_text(
        _inputs(reader),
        clean,
        asked=[place for part in (view, view.asked) for place in _origins(part)],
        origins=_origins(reader),
        positions=_told(reader.positions),
        vocabulary=names.vocabulary,
    )
    words = [] if names.outcomes else clean
    unseen = {**_unseen(view.asked, reader, words), **_unseen(view, reader, words)}
    fed = {id(part): _fed(part, names) for part in (view, view.asked)}
    fed[id(reader)] = _fed_of_text(reader, names, reading, unseen, _other(batch))
    hidden = reading.hidden(unseen, len(clean))
    text = _text_strips(clean, hidden, names)
    panels = [Panel(strips=text)] if reading.shift is None else []
    parts = [("", view)] if view.decoder is None else [("encoder", view), ("decoder", view.decoder)]
    for name, part in parts:
        strips = _strips(part, fed[id(part)], names)
        if part is reader and reading.shift is not None:
            strips = _beside(text, strips, reading.shift)
        panels.append(Panel(name=name, strips=strips))
    return Showing(
        panels=tuple(panels),
        matrices=_matrices(view, fed, names),
        remarks=_remarks(view),
    )


def _other(batch: Batch) -> list[int]:
    """The words of the second row, where there is one."""
    return [] if len(batch) < 2 else batch.tokens[1, 1 : int(batch.lengths[1]) - 1].tolist()


def _unseen(asked: View, reader: View, clean: Sequence[int]) -> dict[int, set[int]]:
    """By place of the clean text that is asked: the inputs that its prediction may not see.

    A decoder sees all of the encoder's inputs. A target that is not the clean word at its origin
    came from another text; without `clean` targets are no words.
    """
    if asked.origins is None or asked.targets is None:
        return {}
    length = _length(asked)
    rule = asked.query_visibility or asked.visibility
    mask = rule.mask(asked.lengths, asked.inputs.shape[1])[0, :length, :length]
    found: dict[int, set[int]] = {}
    for place in range(length):
        origin, target = int(asked.origins[0, place]), int(asked.targets[0, place])
        own_word = not clean or (origin < len(clean) and clean[origin] == target)
        if origin >= 0 and target != NO_TARGET and own_word:
            own = (~mask[place]).nonzero()[:, 0].tolist() if asked is reader else []
            found[origin] = set(own) & found.get(origin, set(own))
    return found


def _reader(view: View, batch: Batch, clean: Sequence[int]) -> View:
    """The view whose inputs are made of the clean text: the encoder's, unless it reads another."""
    if view.decoder is None:
        return view
    words = set(clean[1:-1]) & set(_inputs(view))
    return view if batch.condition is None and words else view.decoder


def _length(view: View) -> int:
    return int(view.lengths[0])


def _inputs(view: View) -> list[int]:
    """Ids of what is fed; none where vectors are."""
    return [] if view.inputs.ndim != 2 else view.inputs[0, : _length(view)].tolist()


def _told(values: Tensor | None) -> list[int] | None:
    """The first row as numbers, where there is one number a place."""
    return None if values is None or values.ndim != 2 else [int(each) for each in values[0]]


def _origins(view: View) -> list[int]:
    """Where in the clean text the target of each place comes from, -1 where nothing is asked."""
    if view.origins is None or view.targets is None:
        return []
    told = view.origins[0].masked_fill(view.targets[0] == NO_TARGET, -1)
    return [int(each) for each in told]


def _text_strips(clean: Sequence[int], hidden: frozenset[int], names: Names) -> tuple[Strip, ...]:
    words = (
        Cell(text=names.of(id), look="hidden" if place in hidden else "plain")
        for place, id in enumerate(clean)
    )
    return (
        Strip(name="place", cells=_numbers(range(len(clean)))),
        Strip(name="text", cells=tuple(words)),
    )


def _numbers(values: Sequence[int] | range) -> tuple[Cell, ...]:
    return tuple(Cell(text=str(value), look="number") for value in values)


def _beside(text: tuple[Strip, ...], strips: tuple[Strip, ...], shift: int) -> tuple[Strip, ...]:
    """Both over the same columns: input t stands under place t + shift of the text."""
    moved = [(None,) * shift + strip.cells for strip in strips]
    columns = max(len(cells) for cells in (*(strip.cells for strip in text), *moved))
    named = [*text, *(Strip(name=s.name, cells=c) for s, c in zip(strips, moved, strict=True))]
    return tuple(
        Strip(name=strip.name, cells=strip.cells + (None,) * (columns - len(strip.cells)))
        for strip in named
    )


def _fed(view: View, names: Names) -> tuple[Cell, ...]:
    """What stands at each place of a view that has no word of the clean text but by answers."""
    if view.inputs.ndim != 2:
        return tuple(Cell(text=f"patch {place + 1}") for place in range(_length(view)))
    inputs = _inputs(view)
    back = given_back(inputs, _told(view.targets))
    return tuple(
        Cell(text=names.of(id), look="answer" if place in back else "plain")
        if not stands_in(id, names.vocabulary)
        else Cell(text=names.of(id), look="mask")
        for place, id in enumerate(inputs)
    )


def _fed_of_text(
    view: View, names: Names, reading: Reading, unseen: dict[int, set[int]], other: list[int]
) -> tuple[Cell, ...]:
    """What stands at each place of the view that is made of the clean text."""
    if view.inputs.ndim != 2:
        return _fed(view, names)
    inputs = _inputs(view)
    answers, strange = reading.answers(unseen), foreign(inputs, reading, other)
    cells = []
    for place, id in enumerate(inputs):
        look: Look = "plain"
        if stands_in(id, names.vocabulary):
            look = "mask"
        elif place in answers:
            look = "answer"
        elif place in strange:
            look = "other"
        elif reading.places[place] < 0 and not _is_frame(id, names):
            look = "changed"
        cells.append(Cell(text=names.of(id), look=look))
    return tuple(cells)


def _is_frame(id: int, names: Names) -> bool:
    vocabulary = names.vocabulary
    return id in (vocabulary.start, vocabulary.end, vocabulary.first, vocabulary.pad)


def _strips(view: View, fed: tuple[Cell, ...], names: Names) -> tuple[Strip, ...]:
    """All that a view says of its places."""
    length = _length(view)
    strips = [Strip(name="fed", cells=fed), *_positions(view)]
    for name, values in (("segment", view.segments), ("turn", view.order)):
        if values is not None:
            strips.append(Strip(name=name, cells=_numbers(values[0, :length].tolist())))
    if view.mentions is not None and bool((view.mentions[0, :length] >= 0).any()):
        strips.append(Strip(name="mention", cells=_where(view.mentions[0, :length].tolist())))
    if view.targets is not None:
        strips += _asked_strips(view, names)
    if view.labels is not None and view.labels.ndim == 2:
        strips.append(Strip(name="label", cells=_numbers(view.labels[0, :length].tolist())))
    return tuple(strips)


def _positions(view: View) -> list[Strip]:
    length = _length(view)
    if view.positions is None:
        return [Strip(name="position", cells=_numbers(range(length)))]
    found = view.positions[0, :length]
    if found.ndim == 1:
        return [Strip(name="position", cells=_numbers(found.tolist()))]
    return [
        Strip(name=f"position {each + 1}", cells=_numbers(found[:, each].tolist()))
        for each in range(found.shape[1])
    ]


def _asked_strips(view: View, names: Names) -> list[Strip]:
    assert view.targets is not None
    length = _length(view)
    targets = view.targets[0, :length]
    words = tuple(
        None if id == NO_TARGET else Cell(text=names.target(id), look="target")
        for id in targets.tolist()
    )
    strips = [Strip(name="target", cells=words)]
    if view.origins is not None:
        strips.append(Strip(name="from place", cells=_where(_origins(view)[:length])))
    if view.weights is not None:
        weights = view.weights[0, :length]
        asked = targets != NO_TARGET
        if bool((weights[asked] != 1).any()):
            cells = (
                Cell(text=f"{weight:.2g}", look="number") if told else None
                for weight, told in zip(weights.tolist(), asked.tolist(), strict=True)
            )
            strips.append(Strip(name="weight", cells=tuple(cells)))
    return strips


def _where(values: Sequence[int]) -> tuple[Cell | None, ...]:
    """Numbers where they are told, nothing where they are -1."""
    return tuple(None if value < 0 else Cell(text=str(value), look="number") for value in values)


def _matrices(view: View, fed: dict[int, tuple[Cell, ...]], names: Names) -> tuple[Matrix, ...]:
    def matrix(name: str, part: View, rule: Visibility, *, told: bool = True) -> Matrix:
        length, cells = _length(part), fed[id(part)]
        seen = rule.mask(part.lengths, part.inputs.shape[1])[0, :length, :length]
        asked = _asked_words(part, names)
        return Matrix(
            name=name, rows=cells, columns=cells, seen=_rows(seen), asked=asked, told=told
        )

    if view.decoder is not None:
        decoder = view.decoder
        across = torch.ones(_length(decoder), _length(view), dtype=torch.bool)
        return (
            matrix("encoder", view, view.visibility),
            matrix("decoder", decoder, decoder.visibility, told=False),
            Matrix(
                name="decoder looks at encoder",
                rows=fed[id(decoder)],
                columns=fed[id(view)],
                seen=_rows(across),
                asked=_asked_words(decoder, names),
            ),
        )
    if view.query_visibility is not None:
        content = matrix("content stream", view, view.visibility)
        return (
            replace(content, asked=("",) * len(content.rows)),
            matrix("query stream", view, view.query_visibility),
        )
    return (matrix("who may see whom", view, view.visibility),)


def _asked_words(view: View, names: Names) -> tuple[str, ...]:
    if view.targets is None:
        return ("",) * _length(view)
    ids = view.targets[0, : _length(view)].tolist()
    return tuple("" if id == NO_TARGET else names.target(id) for id in ids)


def _rows(mask: Tensor) -> tuple[tuple[bool, ...], ...]:
    return tuple(tuple(bool(cell) for cell in row) for row in mask.tolist())


def _remarks(view: View) -> tuple[str, ...]:
    found = []
    for part in (view, view.decoder):
        told = None if part is None else part.labels
        if told is not None and told.ndim == 1 and int(told[0]) != NO_TARGET:
            found.append(f"Label of the whole text: {int(told[0])}.")
    return tuple(found)
