"""One sentence through a network of layers: its inner values, with the words of every place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.evaluation_mode import (
    device_of,
    evaluating,
)
from lmlab.core.system import Assembly, System
from lmlab.core.view import View
from lmlab.inspection.inspected_models import (
    Sentence,
    Subject,
    batch_of,
)
from lmlab.objective_figures.figure_contents import (
    Names,
    NamesSymbols,
)
from lmlab.objectives.objective_interfaces import DetectingObjective, FillingObjective

LAYERED = re.compile(r"(?P<where>.*?) ?layer (?P<layer>\d+) (?P<what>.+)")
"""Names of inner values that every layer has: `decoder layer 3 source attention`."""
SEEDS = 4
"""Ways to hide something of a text that are tried."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """The same inner value of every layer."""

    where: str
    """encoder, decoder, query, or nothing."""
    what: str
    layers: tuple[int, ...]
    captures: tuple[Capture, ...]

    @property
    def name(self) -> str:
        """What a person calls it."""
        return f"{self.where} {self.what}".strip()

    @property
    def axes(self) -> tuple[str, ...]:
        return self.captures[0].axes


@dataclass(frozen=True, kw_only=True, eq=False)
class Looked:
    """A sentence, how it was shown, and what was seen inside."""

    sentence: Sentence
    view: View
    names: Names
    captures: Mapping[str, Capture]

    def series(self) -> list[Series]:
        """Inner values that come layer by layer."""
        return series_of(self.captures)

    def words(self, series: Series, axis: str, entries: int) -> tuple[str, ...]:
        """A name for each entry of an axis: its own, the word that is fed there, or a number."""
        named = series.captures[0].names.get(axis)
        if named is not None:
            return named
        if axis not in ("time", "source"):
            return tuple(str(entry + 1) for entry in range(entries))
        reads_source = axis == "source" and series.what.startswith("source")
        words = words_read(self.view, "encoder" if reads_source else series.where, self.names)
        if len(words) > entries:
            return words[len(words) - entries :] if axis == "source" else words[:entries]
        # What stands before the inputs was put there by the network: a memory, a relay.
        return ("·",) * (entries - len(words)) + words


def words_read(view: View, where: str, names: Names) -> tuple[str, ...]:
    """What goes through the layers of the encoder, the decoder, or the only stack there is."""
    if view.decoder is None or where == "encoder":
        return words_fed(view, names)
    written = words_fed(view.decoder, names)
    if where == "decoder":
        return written
    # One stack for an image and its text: the first token, the patches, the other tokens.
    return (*written[:1], *words_fed(view, names), *written[1:])


def words_fed(view: View, names: Names) -> tuple[str, ...]:
    """What is fed at each place of the first row."""
    length = int(view.lengths[0])
    if view.inputs.ndim != 2:
        return tuple(f"patch {place + 1}" for place in range(length))
    return tuple(names.of(id) for id in view.inputs[0, :length].tolist())


def series_of(captures: Mapping[str, Capture]) -> list[Series]:
    """Inner values that come layer by layer, in the order of their first layer."""
    found: dict[tuple[str, str], list[tuple[int, Capture]]] = {}
    for name, capture in captures.items():
        match = LAYERED.fullmatch(name)
        if match is not None:
            key = (match["where"].strip(), match["what"])
            found.setdefault(key, []).append((int(match["layer"]), capture))
    return [
        Series(
            where=where,
            what=what,
            layers=tuple(layer for layer, _ in pairs),
            captures=tuple(capture for _, capture in pairs),
        )
        for (where, what), pairs in found.items()
    ]


def is_layered(captures: Mapping[str, Capture]) -> bool:
    """Whether these are the inner values of a network whose layers attend."""
    return any("head" in capture.axes for capture in captures.values())


def plain_captures(captures: Mapping[str, Capture]) -> dict[str, Capture]:
    """Those that are worth a picture by themselves: of layers that attend, what has no layer."""
    if not is_layered(captures):
        return dict(captures)
    return {
        name: capture
        for name, capture in captures.items()
        if not (LAYERED.fullmatch(name) and _in_series(capture))
        and not (name.endswith("input") and "unit" in capture.axes)
    }


def _in_series(capture: Capture) -> bool:
    return "unit" in capture.axes or ("head" in capture.axes and len(capture.axes) == 4)


def names_of(subject: Subject) -> Names:
    """How ids of a run are written."""
    objective = getattr(subject.system, "objective", None)
    return Names(
        token=subject.token,
        vocabulary=subject.model.tokenizer.vocabulary,
        symbols=objective.symbols if isinstance(objective, NamesSymbols) else {},
    )


def look_at(subject: Subject, sentence: Sentence) -> Looked | None:
    """A pass over one sentence with everything noted; None where no layer attends."""
    system = subject.system
    if not isinstance(system, Assembly):
        return None
    with evaluating(system):
        view = shown_whole(system, batch_of(system, [sentence]).to(device_of(system)))
        captures = system.backbone.reveal(view)
    if not is_layered(captures):
        return None
    return Looked(sentence=sentence, view=view, names=names_of(subject), captures=captures)


def shown_whole(system: System, batch: Batch) -> View:
    """The texts with nothing hidden where the objective can show them so; else its own view."""
    assert isinstance(system, Assembly)
    objective = system.objective
    if isinstance(objective, DetectingObjective):
        return objective.clean_view(batch)
    view = _view(system, batch, 0)
    if view.decoder is not None:
        # Of what is hidden at random, the way that leaves the encoder most to read.
        views = [view, *(_view(system, batch, seed) for seed in range(1, SEEDS))]
        return max(views, key=lambda each: int(each.lengths[0]))
    # Two streams have nothing to draw where nothing is asked.
    if isinstance(objective, FillingObjective) and view.query_visibility is None:
        return objective.fill_view(batch, torch.zeros_like(batch.tokens, dtype=torch.bool))
    return view


def _view(system: Assembly, batch: Batch, seed: int) -> View:
    return system.objective.view(batch, generator=torch.Generator().manual_seed(seed))
