"""Data of an objective figure: token cells, rows, panels, attention masks, notes, annotations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from lmlab.core.assembly import ComposedSystem
from lmlab.core.attention_mask import LayerMask
from lmlab.core.view import View

CellStyle = Literal["plain", "hidden", "mask", "changed", "other", "answer", "target", "number"]


@dataclass(frozen=True, kw_only=True)
class TokenCell:
    """A token or a number, and its role."""

    text: str
    style: CellStyle = "plain"
    pixels: tuple[tuple[float, ...], ...] = ()
    """Rows of intensities from -1 to 1, for an image or a patch."""


@dataclass(frozen=True, kw_only=True)
class CellRow:
    """A row of cells; None for an empty column."""

    name: str
    cells: tuple[TokenCell | None, ...]


@dataclass(frozen=True, kw_only=True)
class CellPanel:
    """Rows with aligned columns."""

    name: str = ""
    rows: tuple[CellRow, ...]

    def row(self, name: str) -> CellRow:
        """The row of this name."""
        return next(row for row in self.rows if row.name == name)


@dataclass(frozen=True, kw_only=True)
class AttentionMaskGrid:
    """Attention mask: rows are queries, columns keys."""

    name: str
    rows: tuple[TokenCell, ...]
    columns: tuple[TokenCell, ...]
    allowed: tuple[tuple[bool, ...], ...]
    targets: tuple[str, ...]
    """The target of each row, "" for none."""
    show_targets: bool = True
    """Whether targets are shown next to the rows."""


@dataclass(frozen=True, kw_only=True)
class ObjectiveContents:
    """One text under an objective: panels, attention masks and notes."""

    panels: tuple[CellPanel, ...]
    matrices: tuple[AttentionMaskGrid, ...]
    notes: tuple[str, ...] = ()

    @property
    def styles(self) -> set[CellStyle]:
        """The cell styles in use."""
        rows = (row for panel in self.panels for row in panel.rows)
        return {cell.style for row in rows for cell in row.cells if cell is not None}


@runtime_checkable
class ExplainsView(Protocol):
    """An objective that describes a sampled view and its labels in sentences."""

    def explain(self, view: View) -> tuple[str, ...]:
        """Sentences about the first row."""
        ...


@runtime_checkable
class NamesMentions(Protocol):
    """An objective that names the mentions of its views."""

    def mention_name(self, id: int) -> str:
        """Name of a mention."""
        ...


@runtime_checkable
class HasBoundaryPositions(Protocol):
    """An objective that predicts targets again from other positions (SpanBERT's boundaries)."""

    def boundary_positions(self, view: View) -> Mapping[int, tuple[int, ...]]:
        """By target position of the first row, those positions; empty if there are none."""
        ...


@runtime_checkable
class HasImageTextView(Protocol):
    """A backbone that encodes an image and a text in one row."""

    def image_text_view(self, view: View) -> View:
        """Image and text in one row."""
        ...


@runtime_checkable
class HasLayerMask(Protocol):
    """A backbone whose layers attend to less than a view allows (sparse attention)."""

    def layer_mask(self, length: int) -> LayerMask:
        """Attention mask of one layer for a text of this length."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewAnnotations:
    """Annotations of a view in its figure."""

    notes: tuple[str, ...] | None = None
    """Sentences below the rows; None falls back to the bare label."""
    mention_name: Callable[[int], str] = str
    boundary_positions: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    layer_mask: LayerMask | None = None
    joint_view: View | None = None
    """Image and text as one sequence, if one stack encodes both."""


def annotate_view(system: ComposedSystem, view: View) -> ViewAnnotations:
    """Annotations of a view by objective and backbone."""
    objective, backbone = system.objective, system.backbone
    layer_mask = joint_view = None
    if view.decoder is None and isinstance(backbone, HasLayerMask):
        layer_mask = backbone.layer_mask(int(view.lengths[0]))
    if view.decoder is not None and isinstance(backbone, HasImageTextView):
        joint_view = backbone.image_text_view(view)
    return ViewAnnotations(
        notes=objective.explain(view) if isinstance(objective, ExplainsView) else None,
        mention_name=objective.mention_name if isinstance(objective, NamesMentions) else str,
        boundary_positions=objective.boundary_positions(view)
        if isinstance(objective, HasBoundaryPositions)
        else {},
        layer_mask=layer_mask,
        joint_view=joint_view,
    )
