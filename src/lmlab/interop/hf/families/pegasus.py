"""PEGASUS (Zhang et al. 2020): norms before the sublayers, positions that are not learned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.data.tokenizers import Tokenizer
from lmlab.interop.hf.bart_like import (
    SIDES,
    RestoringFamily,
)
from lmlab.interop.hf.family import Shape
from lmlab.interop.hf.weight_mapping import (
    Pair,
    linear,
)
from lmlab.layers.positional_embedding import SinusoidalPositions

GAP = "<mask_1>"
"""What stands for a gap sentence in the published tokenisers; they have no other mask symbol."""

ROUNDED = 0.01
"""By how much a stored sine may differ: bfloat16 keeps eight binary digits."""


class Pegasus(RestoringFamily):
    model_type = "pegasus"
    systems = ("pegasus",)
    fixed = {
        "pre_norm": True,
        "embedding_norm": False,
        "positions": "sinusoidal",
        "norm_epsilon": 1e-5,
    }
    free = RestoringFamily.free | {"choice", "stretch"}
    ignored = (*RestoringFamily.ignored, r"\.embed_positions\.weight$")
    begins_with_start = False

    def side_pairs(self, shape: Shape, ours: str, theirs: str) -> Iterator[Pair]:
        yield from linear(f"{ours}.stack.norm", f"{theirs}.layer_norm")

    def fillers(self, shape: Shape) -> Mapping[str, Tensor]:
        waves = SinusoidalPositions(shape.settings["width"]).waves(
            torch.arange(shape.settings["length"])
        )
        return {f"model.{side}.embed_positions.weight": waves for side in SIDES}

    def check_ignored(self, shape: Shape, weights: Mapping[str, Tensor]) -> None:
        """Stored positions must be the sines, which are made anew here."""
        for name, waves in self.fillers(shape).items():
            stored = weights.get(name)
            if stored is None:
                continue
            rows = min(len(stored), len(waves))
            fits = stored.shape[1:] == waves.shape[1:]
            if not fits or (stored[:rows].float() - waves[:rows]).abs().max() > ROUNDED:
                raise UserError(
                    f"the checkpoint's {name} are not PEGASUS' sines and cosines of positions, and "
                    "lmlab's pegasus has no others; it can't be imported."
                )

    def read_more(
        self, config: Mapping[str, Any], names: frozenset[str], tokenizer: Tokenizer
    ) -> dict[str, Any]:
        gap = tokenizer.id(GAP)
        told = {} if gap is None else {"mask": gap}
        return {**super().read_more(config, names, tokenizer), **told}

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "PegasusForConditionalGeneration"


FAMILY = Pegasus()
