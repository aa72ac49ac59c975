"""What a picture of an objective is made of: cells, strips of them, and who sees whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from lmlab.backbones.backbone_interfaces import ImageTextBackbone
from lmlab.core.attention_mask import LayerMask
from lmlab.core.system import Assembly
from lmlab.core.view import View

CellStyle = Literal["plain", "hidden", "mask", "changed", "other", "answer", "target", "number"]


@dataclass(frozen=True, kw_only=True)
class TokenCell:
    """A word or a number, and what it is in the story."""

    text: str
    style: CellStyle = "plain"
    pixels: tuple[tuple[float, ...], ...] = ()
    """Rows of intensities from -1 to 1, where it is an image or a patch of one."""


@dataclass(frozen=True, kw_only=True)
class CellRow:
    """A line of cells; None where a column has nothing to tell."""

    name: str
    cells: tuple[TokenCell | None, ...]


@dataclass(frozen=True, kw_only=True)
class CellPanel:
    """Strips below each other whose columns belong together."""

    name: str = ""
    rows: tuple[CellRow, ...]

    def row(self, name: str) -> CellRow:
        """The one of this name."""
        return next(strip for strip in self.rows if strip.name == name)


@dataclass(frozen=True, kw_only=True)
class AttentionMaskGrid:
    """Who may see whom: rows ask, columns are looked at."""

    name: str
    rows: tuple[TokenCell, ...]
    columns: tuple[TokenCell, ...]
    allowed: tuple[tuple[bool, ...], ...]
    targets: tuple[str, ...]
    """What is predicted at each row, "" where nothing is."""
    show_targets: bool = True
    """Whether what is predicted is written beside the rows."""


@dataclass(frozen=True, kw_only=True)
class ObjectiveContents:
    """One text as an objective shows it."""

    panels: tuple[CellPanel, ...]
    matrices: tuple[AttentionMaskGrid, ...]
    notes: tuple[str, ...] = ()

    @property
    def styles(self) -> set[CellStyle]:
        """What kinds of cells there are."""
        strips = (strip for panel in self.panels for strip in panel.rows)
        return {cell.style for strip in strips for cell in strip.cells if cell is not None}


@runtime_checkable
class ExplainsView(Protocol):
    """An objective that says in sentences what was drawn and what its labels mean."""

    def explain(self, view: View) -> tuple[str, ...]:
        """Sentences on the first row."""
        ...


@runtime_checkable
class NamesMentions(Protocol):
    """An objective that knows the mentions of its views by name."""

    def mention_name(self, id: int) -> str:
        """What a mention is called."""
        ...


@runtime_checkable
class HasBoundaryPositions(Protocol):
    """An objective that asks a target once more, from hidden states of other places."""

    def boundary_positions(self, view: View) -> Mapping[int, tuple[int, ...]]:
        """By asked place of the first row, those places; empty where nothing is asked so."""
        ...


@runtime_checkable
class HasLayerMask(Protocol):
    """A backbone whose layers look at less than a view allows."""

    def layer_mask(self, length: int) -> LayerMask:
        """What one layer looks at in a text of so many places."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewAnnotations:
    """What is added to a view in its picture."""

    notes: tuple[str, ...] | None = None
    """Sentences below the strips; None where the bare label must do."""
    mention_name: Callable[[int], str] = str
    boundary_positions: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    layer_mask: LayerMask | None = None
    joint_view: View | None = None
    """Image and text in one row, where one stack reads both."""


def annotate_view(system: Assembly, view: View) -> ViewAnnotations:
    """What objective and backbone have to say of a view."""
    objective, backbone = system.objective, system.backbone
    sight = stack = None
    if view.decoder is None and isinstance(backbone, HasLayerMask):
        sight = backbone.layer_mask(int(view.lengths[0]))
    if view.decoder is not None and isinstance(backbone, ImageTextBackbone):
        stack = backbone.image_text_view(view)
    return ViewAnnotations(
        notes=objective.explain(view) if isinstance(objective, ExplainsView) else None,
        mention_name=objective.mention_name if isinstance(objective, NamesMentions) else str,
        boundary_positions=objective.boundary_positions(view)
        if isinstance(objective, HasBoundaryPositions)
        else {},
        layer_mask=sight,
        joint_view=stack,
    )
