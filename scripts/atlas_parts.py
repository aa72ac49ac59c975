"""Markdown tables and lists of backbones, emissions and objectives for the atlas."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import TypeVar

from torch import nn

import lmlab.backbones
import lmlab.emissions
import lmlab.retrieval
from lmlab.core.parts import Backbone, OutputLayer

Part = TypeVar("Part")


def parts_in(package: ModuleType, base: type[Part]) -> list[type[Part]]:
    """The subclasses of `base` defined in a package, sorted by name."""
    parts = []
    for module in pkgutil.iter_modules(package.__path__):
        loaded = importlib.import_module(f"{package.__name__}.{module.name}")
        for _, part in inspect.getmembers(loaded, inspect.isclass):
            if issubclass(part, base) and part.__module__ == loaded.__name__:
                parts.append(part)
    return sorted(parts, key=lambda part: part.__name__)


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; vertical bars inside cells are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def fitting_table() -> str:
    """Markdown table: the backbones and emissions of each kind of hidden states."""
    emissions = parts_in(lmlab.emissions, OutputLayer)
    backbones = parts_in(lmlab.backbones, Backbone) + parts_in(lmlab.retrieval, Backbone)
    rows = []
    for kind in sorted({backbone.output_kind for backbone in backbones}):
        producers = [f"`{part.__name__}`" for part in backbones if part.output_kind == kind]
        consumers = [f"`{part.__name__}`" for part in emissions if kind in part.input_kinds]
        rows.append([kind, ", ".join(producers), ", ".join(consumers)])
    return table(
        ["hidden states", "backbones that output them", "emissions that accept them"], rows
    )


def part_list(package: ModuleType, base: type[nn.Module]) -> str:
    """Markdown list of the parts of a package: name, link and first line of the docstring."""
    lines = []
    for part in parts_in(package, base):
        path = part.__module__.replace(".", "/")
        first = (inspect.getdoc(part) or "").partition("\n")[0]
        lines.append(f"- [`{part.__name__}`](../../src/{path}.py): {first}")
    return "\n".join(lines)
