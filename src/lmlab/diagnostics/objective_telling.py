"""What the parts of a system say of a view beyond the view itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from lmlab.core.layer_sight import LayerSight
from lmlab.core.seeing import SeeingBackbone
from lmlab.core.system import Assembly
from lmlab.core.view import View


@runtime_checkable
class Explains(Protocol):
    """An objective that says in sentences what was drawn and what its labels mean."""

    def explain(self, view: View) -> tuple[str, ...]:
        """Sentences on the first row."""
        ...


@runtime_checkable
class NamesMentions(Protocol):
    """An objective that knows the mentions of its views by name."""

    def mention(self, id: int) -> str:
        """What a mention is called."""
        ...


@runtime_checkable
class AsksFromOutside(Protocol):
    """An objective that asks a target once more, from hidden states of other places."""

    def asked_from(self, view: View) -> Mapping[int, tuple[int, ...]]:
        """By asked place of the first row, those places; empty where nothing is asked so."""
        ...


@runtime_checkable
class LooksNarrowly(Protocol):
    """A backbone whose layers look at less than a view allows."""

    def layer_sight(self, length: int) -> LayerSight:
        """What one layer looks at in a text of so many places."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Told:
    """What is added to a view in its picture."""

    remarks: tuple[str, ...] | None = None
    """Sentences below the strips; None where the bare label must do."""
    mention: Callable[[int], str] = str
    asked_from: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    sight: LayerSight | None = None
    stack: View | None = None
    """Image and text in one row, where one stack reads both."""


def told_of(system: Assembly, view: View) -> Told:
    """What objective and backbone have to say of a view."""
    objective, backbone = system.objective, system.backbone
    sight = stack = None
    if view.decoder is None and isinstance(backbone, LooksNarrowly):
        sight = backbone.layer_sight(int(view.lengths[0]))
    if view.decoder is not None and isinstance(backbone, SeeingBackbone):
        stack = backbone.joined(view)
    return Told(
        remarks=objective.explain(view) if isinstance(objective, Explains) else None,
        mention=objective.mention if isinstance(objective, NamesMentions) else str,
        asked_from=objective.asked_from(view) if isinstance(objective, AsksFromOutside) else {},
        sight=sight,
        stack=stack,
    )
