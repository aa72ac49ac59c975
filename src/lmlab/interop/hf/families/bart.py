"""BART (Lewis et al. 2020): norms after the sublayers; two rows stand before its positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lmlab.interop.hf.bart_like import RestoringFamily
from lmlab.interop.hf.family import Shape
from lmlab.interop.hf.weight_mapping import (
    Pair,
    Rows,
    linear,
    pair,
)

FIRST = 2
"""The row of position 0."""


class Bart(RestoringFamily):
    model_type = "bart"
    systems = ("bart",)
    fixed = {
        "pre_norm": False,
        "embedding_norm": True,
        "positions": "learned",
        "norm_epsilon": 1e-5,
    }
    free = RestoringFamily.free | {"noises", "mean_span"}
    begins_with_start = True

    def side_pairs(self, shape: Shape, ours: str, theirs: str) -> Iterator[Pair]:
        length = shape.settings["length"]
        positions = Rows(ours=length, theirs=length + FIRST, first=FIRST)
        table = f"{ours}.embedding.positions.table.weight"
        yield pair(table, f"{theirs}.embed_positions.weight", positions)
        yield from linear(f"{ours}.embedding.norm", f"{theirs}.layernorm_embedding")

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "BartForConditionalGeneration"


FAMILY = Bart()
