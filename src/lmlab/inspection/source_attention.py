"""Where a writer looked in its source, word by word: one picture for a translation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from lmlab.core.atomic_files import (
    telling_disk_errors,
    write_text,
)
from lmlab.core.batch import Batch
from lmlab.core.capture import UNIT_INTERVAL, Capture
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import (
    device_of,
    evaluating,
)
from lmlab.core.locks import FolderLock
from lmlab.inspection.inspected_models import framed
from lmlab.objective_figures.objective_figure import alone
from lmlab.plotting.charts import (
    Axis,
    Grid,
    Values,
    draw_grids,
    grids_size,
)
from lmlab.plotting.figure import (
    Picture,
    render,
)
from lmlab.sampling.translation import Translation
from lmlab.training.distributed import lock_output
from lmlab.training.run_folder import Model

MOST_TOKENS = 60
"""Tokens that are drawn along each side."""
READING = (
    "A row is a written token, and its squares where in the source was looked for it; the squares "
    "of a row sum to one."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Looked:
    """Where in a source was looked for each written token."""

    weights: Values
    """(T, S); over several layers and heads the mean of the last layer's heads."""
    written: tuple[str, ...]
    source: tuple[str, ...]


def look_at_source(model: Model, source: str, written: str) -> Looked:
    """The weights that a translator gives its source while it writes a text."""
    system, reads = model.system, model.reads_by
    given, ids = framed(reads, source), framed(model.tokenizer, written)
    condition = Batch.from_sequences([given], system.vocabulary.pad)
    batch = Batch.from_sequences([ids], system.vocabulary.pad, condition=condition)
    with evaluating(system):
        captures = system.reveal(batch.to(device_of(system)))
    found = _weights(captures)
    if found is None:
        raise UserError(
            f"{model.card.name} looks at no place of its source, so there is nothing to draw; "
            "those that do: seq2seq-attention, transformer."
        )
    return Looked(
        weights=found,
        written=tuple(map(model.tokenizer.token, ids[1:])),
        source=tuple(map(reads.token, given)),
    )


def draw_source(model: Model, source: str, written: str, path: Path) -> None:
    """Write the picture of a translation as SVG."""
    looked = look_at_source(model, source, written)
    drawn = render(picture_of(looked, name=path.stem))
    with telling_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, alone(drawn.svg))


def draw_all(model: Model, found: Iterator[Translation], folder: Path) -> Iterator[Translation]:
    """Translations as they come, the best of each drawn into a folder under its number.

    A system that looks nowhere, or a folder that can't be written to, is told before the first.
    """
    look_at_source(model, "", "")
    return _drawn(model, found, folder, lock_output(folder))


def _drawn(
    model: Model, found: Iterator[Translation], folder: Path, lock: FolderLock
) -> Iterator[Translation]:
    with lock:
        for number, each in enumerate(found, 1):
            if each.written:
                draw_source(model, each.source, each.text, folder / f"{number}.svg")
            yield each


def picture_of(looked: Looked, *, name: str) -> Picture:
    grid = Grid(
        values=looked.weights[:MOST_TOKENS, :MOST_TOKENS],
        rows=Axis(name="written", labels=looked.written[:MOST_TOKENS]),
        columns=Axis(name="source", labels=looked.source[:MOST_TOKENS]),
        bounds=UNIT_INTERVAL,
    )
    width, height = grids_size([grid])
    return Picture(
        name=name,
        title="Where it looked",
        reading=READING,
        draw=partial(draw_grids, grids=[grid], title=f"attention to the source{_cut(looked)}"),
        width=width,
        height=height,
    )


def _cut(looked: Looked) -> str:
    """What of a long text is drawn."""
    sizes = {"written": len(looked.written), "source": len(looked.source)}
    cut = [f"{MOST_TOKENS} of {size} {name}" for name, size in sizes.items() if size > MOST_TOKENS]
    return f", the first {' and '.join(cut)} tokens" if cut else ""


def _weights(captures: dict[str, Capture]) -> Values | None:
    """(T, S) of the one glance there is, or of the last layer that looks at a source."""
    looking = [
        capture
        for name, capture in captures.items()
        if name == "attention" or name.endswith("source attention")
    ]
    if not looking:
        return None
    values = looking[-1].values[0]
    values = values.mean(0) if "head" in looking[-1].axes else values
    return np.asarray(values.to(torch.float64).cpu(), dtype=np.float64)
