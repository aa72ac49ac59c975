"""Markdown tables of the parts for the atlas: backbones, emissions, objectives."""

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
from lmlab.core.parts import Backbone, Emission

Part = TypeVar("Part")


def parts_in(room: ModuleType, base: type[Part]) -> list[type[Part]]:
    """The subclasses of `base` defined in a package, sorted by name."""
    parts = []
    for module in pkgutil.iter_modules(room.__path__):
        loaded = importlib.import_module(f"{room.__name__}.{module.name}")
        for _, part in inspect.getmembers(loaded, inspect.isclass):
            if issubclass(part, base) and part.__module__ == loaded.__name__:
                parts.append(part)
    return sorted(parts, key=lambda part: part.__name__)


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def fitting_table() -> str:
    """Markdown table: per kind of hidden states its backbones and the emissions that take it."""
    emissions = parts_in(lmlab.emissions, Emission)
    backbones = parts_in(lmlab.backbones, Backbone) + parts_in(lmlab.retrieval, Backbone)
    rows = []
    for kind in sorted({backbone.output_kind for backbone in backbones}):
        yielding = [f"`{part.__name__}`" for part in backbones if part.output_kind == kind]
        taking = [f"`{part.__name__}`" for part in emissions if kind in part.input_kinds]
        rows.append([kind, ", ".join(yielding), ", ".join(taking)])
    return table(["hidden states", "backbones that yield them", "emissions that read them"], rows)


def part_sentences(room: ModuleType, base: type[nn.Module]) -> str:
    """A line for each part: the first sentence of its docstring."""
    lines = []
    for part in parts_in(room, base):
        path = part.__module__.replace(".", "/")
        first = (inspect.getdoc(part) or "").partition("\n")[0]
        lines.append(f"- [`{part.__name__}`](../../src/{path}.py): {first}")
    return "\n".join(lines)
