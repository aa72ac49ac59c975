"""Wug test: does a model nominalise made-up adjectives as people do (-ity or -ness)?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from lmlab.scoring.alternatives import Alternatives
from lmlab.scoring.json_rows import JsonRow, files_of, json_rows
from lmlab.scoring.suite import Suite


def read_wugs(path: Path) -> Sequence[Alternatives]:
    """Items of two `sentences`, separated by a tab, and the `ratio` of people for the first."""
    files = files_of(path, ".jsonl", "the wug test")
    return [_item(row) for file in files for row in json_rows(file, "item")]


def _item(row: JsonRow) -> Alternatives:
    texts = tuple(row.text("sentences").split("\t"))
    if len(texts) != 2 or not all(map(str.strip, texts)):
        raise row.error("two sentences separated by a tab under 'sentences'")
    ratio = row.values.get("ratio")
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not math.isfinite(ratio):
        raise row.error("a number under 'ratio'")
    name = row.file.stem
    return Alternatives(phenomenon=name, paradigm=name, texts=texts, human_preference=float(ratio))


SUITE = Suite(
    name="wug",
    title="Wug test: nominalisation of made-up adjectives",
    source="Hofmann et al. 2024, Derivational Morphology Reveals Analogical Generalization in "
    "Large Language Models",
    read=read_wugs,
    measure="spearman",
    babylm_task="wug_adj",
)
