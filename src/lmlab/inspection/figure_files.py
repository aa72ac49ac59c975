"""Figure files: SVG, PNG and an index with each figure's caption."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmlab.core.atomic_files import (
    write_bytes,
    write_json,
    write_text,
)
from lmlab.core.json_text import read_json_object
from lmlab.plotting.figure import (
    FigureSpec,
    FigureTable,
    RenderedFigure,
)
from lmlab.plotting.html import TableCell
from lmlab.training.distributed import lock_output

MANIFEST = "inspection.json"
"""The index file."""
PAGE = "inspection.html"
MANIFEST_FORMAT = 1
WRITING_SECONDS = 60.0
"""Seconds to wait for another process that writes to the same folder."""


@dataclass(frozen=True, kw_only=True)
class SavedFigure:
    """A rendered figure."""

    run: str
    """The run shown; empty if there are several."""
    name: str
    """File name without extension."""
    title: str
    caption: str
    svg: str
    """The SVG source, for HTML pages."""
    text: str = ""
    """The sentence shown, if any."""
    table: FigureTable | None = None

    def as_dict(self) -> dict[str, Any]:
        """All but the SVG, for JSON."""
        record: dict[str, Any] = {
            "run": self.run,
            "name": self.name,
            "title": self.title,
            "caption": self.caption,
            "text": self.text,
        }
        if self.table is not None:
            rows = [[[cell.shown, cell.value] for cell in row] for row in self.table.rows]
            record["table"] = {"header": list(self.table.header), "rows": rows}
        return record


def saved_figure(picture: FigureSpec, drawn: RenderedFigure, *, run: str) -> SavedFigure:
    """The saved form of a rendered figure."""
    return SavedFigure(
        run=run,
        name=picture.name,
        title=picture.title,
        caption=picture.caption,
        svg=drawn.svg,
        text=picture.text,
        table=picture.table,
    )


def write_figure_files(
    folder: Path, shots: Sequence[SavedFigure], pngs: Sequence[bytes], *, page: str | None = None
) -> None:
    """Write figures and their index to a folder; delete those of an earlier index."""
    with lock_output(folder, wait=WRITING_SECONDS):
        _write_shots(folder, shots, pngs, page)


def _write_shots(
    folder: Path, shots: Sequence[SavedFigure], pngs: Sequence[bytes], page: str | None
) -> None:
    earlier = {name for name in _listed_names(folder) if _plain(name)}
    for shot, png in zip(shots, pngs, strict=True):
        write_text(folder / f"{shot.name}.svg", shot.svg)
        write_bytes(folder / f"{shot.name}.png", png)
    listed = [shot.as_dict() for shot in shots]
    write_json(folder / MANIFEST, {"format": MANIFEST_FORMAT, "pictures": listed})
    if page is not None:
        write_text(folder / PAGE, page)
    for name in earlier - {shot.name for shot in shots}:
        for ending in ("svg", "png"):
            (folder / f"{name}.{ending}").unlink(missing_ok=True)


def read_figure_files(folder: Path) -> tuple[SavedFigure, ...]:
    """The figures of a folder's index; empty without a readable index."""
    found = []
    for record in _records(folder):
        try:
            svg = (folder / f"{record['name']}.svg").read_text(encoding="utf-8")
            found.append(_shot(record, svg))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # Skip a figure whose file was deleted.
    return tuple(found)


def _shot(record: dict[str, Any], svg: str) -> SavedFigure:
    if not _plain(str(record["name"])) or not svg.startswith("<svg") or "<script" in svg.lower():
        raise ValueError("not a picture of ours")
    fields = {key: str(record[key]) for key in ("run", "name", "title", "caption", "text")}
    table = record.get("table")
    rows = None
    if table is not None:
        cells = tuple(
            tuple(TableCell(shown, value) for shown, value in row) for row in table["rows"]
        )
        rows = FigureTable(header=tuple(table["header"]), rows=cells)
    return SavedFigure(svg=svg, table=rows, **fields)


def _records(folder: Path) -> list[dict[str, Any]]:
    try:
        told = read_json_object(folder / MANIFEST)
        records = told["pictures"] if int(told["format"]) <= MANIFEST_FORMAT else []
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return []
    return [record for record in records if isinstance(record, dict)]


def _listed_names(folder: Path) -> Iterable[str]:
    return (str(record.get("name", "")) for record in _records(folder))


def _plain(name: str) -> bool:
    """Whether a name stays inside its folder."""
    return bool(name) and all(letter.isalnum() or letter in "-_" for letter in name)
