"""Head importance by ablation (Michel et al. 2019): the loss without a head or a layer.

A head's output is set to zero, or a layer is skipped; its importance is the rise in nats per token.
Ablated alone, two redundant heads each cost little. A layer without a residual connection (of a
stacked RNN) is not skipped: the next one would get a vector of another kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.html import TableCell, number_cell
from lmlab.core.system import System, TrainableSystem
from lmlab.inspection.inspected_models import InspectedModel, batches_by_length
from lmlab.layers.stack import Stack
from lmlab.plotting.charts import (
    BarChart,
    HeatMap,
    HeatMapAxis,
    Values,
    draw_bar_chart,
    draw_heat_maps,
    heat_maps_size,
)
from lmlab.plotting.figure import FigureSpec, FigureTable

MAX_PASSES = 1500
"""Budget of texts times ablated parts; limits the number of texts."""
MIN_SENTENCES, MAX_SENTENCES = 4, 32
"""Most texts for the loss."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadImportance:
    """Loss increase by each part of one layer stack, in nats per token."""

    name: str
    """encoder, decoder, or empty for a single stack."""
    loss: float
    """Loss of the intact model, in its unit."""
    layers: Values
    """(layers,) loss increase without a layer; nan for one that is disabled or can't be skipped."""
    heads: Values
    """(layers, heads) loss increase without a head; nan where a layer has no such head."""


def layer_stacks(system: System) -> dict[str, Stack]:
    """The layer stacks of the network by name, without those of auxiliary networks.

    Only stacks with a part that can be ablated: a head, or a layer with a residual connection.
    """
    backbone = getattr(system, "backbone", None)
    if not isinstance(backbone, torch.nn.Module):
        return {}
    stacks = [
        (path, module)
        for path, module in backbone.named_modules()
        if isinstance(module, Stack) and _parts(module)
    ]
    single = len(stacks) == 1
    return {"" if single else path.split(".")[0]: module for path, module in stacks}


def measure_head_importance(
    system: System, batches: Sequence[Batch], *, seed: int = 0
) -> list[HeadImportance]:
    """Loss increase for each layer and head of each stack, with the same masks throughout.

    Cost: a pass over the batches for each part.
    """
    intact_loss = mean_loss(system, batches, seed=seed)
    return [
        _stack_importance(system, name, stack, batches, intact_loss, seed)
        for name, stack in layer_stacks(system).items()
    ]


def mean_loss(system: System, batches: Sequence[Batch], *, seed: int) -> float:
    """Mean loss in the system's unit, with a fixed seed."""
    assert isinstance(system, TrainableSystem)
    total = count = 0.0
    with evaluation_mode(system):
        for index, batch in enumerate(batches):
            generator = torch.Generator().manual_seed(seed + index)
            loss, _ = system.loss(batch.to(device_of(system)), generator=generator)
            total, count = total + float(loss.total), count + float(loss.count)
    return total / max(count, 1.0)


def _stack_importance(
    system: System, name: str, stack: Stack, batches: Sequence[Batch], intact_loss: float, seed: int
) -> HeadImportance:
    blocks = stack.all_blocks()
    max_heads = max(block.mixer.heads for block in blocks)
    layers = np.full(len(blocks), np.nan)
    heads = np.full((len(blocks), max_heads), np.nan)
    for layer, block in stack.layers():
        if block.mixer_connection.has_residual:
            with stack.disabled(layers=[layer]):
                layers[layer - 1] = mean_loss(system, batches, seed=seed) - intact_loss
        for head in range(1, block.mixer.heads + 1):
            with stack.disabled(heads=[(layer, head)]):
                heads[layer - 1, head - 1] = mean_loss(system, batches, seed=seed) - intact_loss
    return HeadImportance(name=name, loss=intact_loss, layers=layers, heads=heads)


def head_importance_figures(subject: InspectedModel) -> list[FigureSpec]:
    """Importance of a run's heads and layers on its own texts; none without attention layers."""
    stacks = layer_stacks(subject.system)
    if not stacks:
        return []
    parts = sum(_parts(stack) for stack in stacks.values())
    count = max(MIN_SENTENCES, min(MAX_SENTENCES, MAX_PASSES // max(parts, 1)))
    texts = (*subject.sample, *subject.sentences)[:count]
    try:
        importances = measure_head_importance(
            subject.system, batches_by_length(subject.system, texts)
        )
    except UserError:
        return []  # The system can't encode such a text by itself.
    unit = subject.system.loss_unit
    loss = importances[0].loss
    note = f"over {len(texts)} texts; the loss of the intact model is {loss:.3f} {unit}."
    figures = []
    if any(np.isfinite(stack.heads).any() for stack in importances):
        figures.append(_heads_figure(importances, note, unit))
    if any(np.isfinite(stack.layers).any() for stack in importances):
        figures.append(_layers_figure(importances, note, unit))
    return figures


def _parts(stack: Stack) -> int:
    """Number of heads and layers of a stack that can be ablated."""
    return sum(
        block.mixer_connection.has_residual + block.mixer.heads for block in stack.all_blocks()
    )


def _names(stacks: Sequence[HeadImportance]) -> list[str]:
    return [f"{stack.name} {i + 1}".strip() for stack in stacks for i in range(len(stack.layers))]


def _heads_figure(stacks: Sequence[HeadImportance], note: str, unit: str) -> FigureSpec:
    heads = max(stack.heads.shape[1] for stack in stacks)
    values = np.concatenate(
        [
            np.pad(stack.heads, ((0, 0), (0, heads - stack.heads.shape[1])), constant_values=np.nan)
            for stack in stacks
        ]
    )
    grid = HeatMap(
        values=values,
        rows=HeatMapAxis(name="layer", labels=tuple(_names(stacks))),
        columns=HeatMapAxis(name="head", labels=tuple(str(head + 1) for head in range(heads))),
        cell=0.36,
    )
    width, height = heat_maps_size([grid])
    title = "importance of each head"
    rows = tuple(
        (TableCell(name), *(number_cell(value, 4) for value in row.tolist()))
        for name, row in zip(_names(stacks), values, strict=True)
    )
    return FigureSpec(
        name="head-importance",
        title=title,
        caption=f"Increase of the loss, in {unit}, when the output of one head is set to "
        f"zero, {note} Orange heads do harm here; two redundant heads cost little "
        "each.",
        draw=partial(draw_heat_maps, grids=[grid], title=f"{title}, {unit}"),
        width=width,
        height=height,
        table=FigureTable(header=("layer", *(f"head {h + 1}" for h in range(heads))), rows=rows),
    )


def _layers_figure(stacks: Sequence[HeadImportance], note: str, unit: str) -> FigureSpec:
    values = np.concatenate([stack.layers for stack in stacks])
    bars = BarChart(
        values=np.nan_to_num(values),
        labels=tuple(_names(stacks)),
        axis="layer",
        unit=unit,
        horizontal=True,
    )
    title = "importance of each layer"
    return FigureSpec(
        name="layer-importance",
        title=title,
        caption=f"Increase of the loss, in {unit}, when one layer is skipped, {note}",
        draw=partial(draw_bar_chart, bars=bars, title=title),
        width=4.6,
        height=max(0.8, 0.26 * len(values)),
        table=FigureTable(
            header=("layer", unit),
            rows=tuple(
                (TableCell(name), number_cell(value, 4))
                for name, value in zip(_names(stacks), values.tolist(), strict=True)
            ),
        ),
    )
