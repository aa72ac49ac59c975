"""Installed packages made up for tests: modules and a `.dist-info` folder on the search path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

SYSTEM = '''"""Bigram of a test: the last word decides the next."""

from dataclasses import dataclass, field

from torch import nn

from lmlab.backbones.window import LinearWindow
from lmlab.core.card import Card
from lmlab.emissions.softmax import Softmax
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.objectives.next_token import NextToken

CARD = Card(
    family="window",
    kind="exact",
    paper="none",
    source="",
    protocols=("LogProb", "Step"),
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings."""

    width: int = field(default=4, metadata={"at_least": 1})
    """Numbers in an embedding."""


SIZES = {"tiny": Config(), "small": Config(), "base": Config()}


def build(config, vocabulary):
    return AutoregressiveLM(
        vocabulary=vocabulary,
        backbone=LinearWindow(nn.Embedding(vocabulary.size, config.width), size=1),
        emission=Softmax(config.width, vocabulary),
        objective=NextToken(),
    )
'''
"""A whole system in one file."""


def write_package(
    folder: Path,
    name: str,
    version: str,
    entry_points: Mapping[str, Mapping[str, str]],
    files: Mapping[str, str],
) -> Path:
    """Write an installed package into a folder, which is to be on the search path."""
    information = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )
    lines = []
    for group, entries in entry_points.items():
        lines += [f"[{group}]", *(f"{key} = {target}" for key, target in entries.items()), ""]
    (information / "entry_points.txt").write_text("\n".join(lines))
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder
