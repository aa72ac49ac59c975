"""Source attention (alignment) of a translation, token by token, as a heat map."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from lmlab.core.atomic_files import telling_disk_errors, write_text
from lmlab.core.batch import Batch
from lmlab.core.capture import UNIT_INTERVAL, Capture
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.locks import FolderLock
from lmlab.data.corpus_encoding import encode_with_special_tokens
from lmlab.plotting.charts import HeatMap, HeatMapAxis, Values, draw_heat_maps, heat_maps_size
from lmlab.plotting.figure import FigureSpec, render_figure, standalone_svg
from lmlab.sampling.translation import Translation
from lmlab.training.distributed import lock_output
from lmlab.training.run_folder import TrainedModel

MAX_TOKENS = 60
"""Most tokens shown along each side."""
CAPTION = (
    "Rows are generated tokens, columns source tokens; the attention weights of a row sum to one."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceAttention:
    """Attention over the source for each generated token."""

    weights: Values
    """(T, S); with several layers and heads, the mean over the last layer's heads."""
    target_tokens: tuple[str, ...]
    source: tuple[str, ...]


def measure_source_attention(model: TrainedModel, source: str, translation: str) -> SourceAttention:
    """Attention weights of a translator over its source, by teacher forcing on `translation`."""
    system, encoder_tokenizer = model.system, model.effective_source_tokenizer
    source_ids, target_ids = (
        encode_with_special_tokens(encoder_tokenizer, source),
        encode_with_special_tokens(model.tokenizer, translation),
    )
    condition = Batch.collate([source_ids], system.vocabulary.pad)
    batch = Batch.collate([target_ids], system.vocabulary.pad, condition=condition)
    with evaluation_mode(system):
        captures = system.capture_internals(batch.to(device_of(system)))
    weights = _weights(captures)
    if weights is None:
        raise UserError(
            f"{model.card.name} has no attention over source positions, so there is nothing "
            "to plot; systems that have it: seq2seq-attention, transformer."
        )
    return SourceAttention(
        weights=weights,
        target_tokens=tuple(map(model.tokenizer.token, target_ids[1:])),
        source=tuple(map(encoder_tokenizer.token, source_ids)),
    )


def write_source_attention(model: TrainedModel, source: str, translation: str, path: Path) -> None:
    """Write the attention figure of a translation as SVG."""
    attention = measure_source_attention(model, source, translation)
    rendered = render_figure(source_attention_figure(attention, name=path.stem))
    with telling_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, standalone_svg(rendered.svg))


def with_source_attention_figures(
    model: TrainedModel, translations: Iterator[Translation], folder: Path
) -> Iterator[Translation]:
    """Pass translations on, plotting the best of each into a folder under its number.

    A system without source attention, or a folder that is not writable, raises before the first.
    """
    measure_source_attention(model, "", "")
    return _plot_translations(model, translations, folder, lock_output(folder))


def _plot_translations(
    model: TrainedModel, translations: Iterator[Translation], folder: Path, lock: FolderLock
) -> Iterator[Translation]:
    with lock:
        for number, result in enumerate(translations, 1):
            if result.candidates:
                write_source_attention(model, result.source, result.text, folder / f"{number}.svg")
            yield result


def source_attention_figure(result: SourceAttention, *, name: str) -> FigureSpec:
    grid = HeatMap(
        values=result.weights[:MAX_TOKENS, :MAX_TOKENS],
        rows=HeatMapAxis(name="generated", labels=result.target_tokens[:MAX_TOKENS]),
        columns=HeatMapAxis(name="source", labels=result.source[:MAX_TOKENS]),
        bounds=UNIT_INTERVAL,
    )
    width, height = heat_maps_size([grid])
    return FigureSpec(
        name=name,
        title="Source attention",
        caption=CAPTION,
        draw=partial(draw_heat_maps, grids=[grid], title=f"attention to the source{_cut(result)}"),
        width=width,
        height=height,
    )


def _cut(attention: SourceAttention) -> str:
    """Remark on what part of a long text is shown."""
    sizes = {"generated": len(attention.target_tokens), "source": len(attention.source)}
    cut = [f"{MAX_TOKENS} of {size} {name}" for name, size in sizes.items() if size > MAX_TOKENS]
    return f", the first {' and '.join(cut)} tokens" if cut else ""


def _weights(captures: dict[str, Capture]) -> Values | None:
    """(T, S) of the only attention, or of the last layer with source attention."""
    attention = [
        capture
        for name, capture in captures.items()
        if name == "attention" or name.endswith("source attention")
    ]
    if not attention:
        return None
    values = attention[-1].values[0]
    values = values.mean(0) if "head" in attention[-1].axes else values
    return np.asarray(values.to(torch.float64).cpu(), dtype=np.float64)
