"""Hugging Face PEGASUS (Zhang et al. 2020): pre-norm, sinusoidal positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.data.tokenizers import Tokenizer
from lmlab.interop.hf.bart_like import SIDES, DenoisingSeq2SeqFamily
from lmlab.interop.hf.family import CheckpointSpec
from lmlab.interop.hf.weight_mapping import WeightPair, linear_pairs
from lmlab.layers.input_embedding import SinusoidalPositionalEmbedding

GAP_SENTENCE_TOKEN = "<mask_1>"
"""The mask of a gap sentence in the published tokenizers; they have no other mask token."""

POSITION_TOLERANCE = 0.01
"""Tolerance for stored sinusoids: bfloat16 has eight binary digits."""


class Pegasus(DenoisingSeq2SeqFamily):
    model_type = "pegasus"
    systems = ("pegasus",)
    fixed = {
        "pre_norm": True,
        "embedding_norm": False,
        "positions": "sinusoidal",
        "norm_epsilon": 1e-5,
        "tied_encoder_decoder": False,
    }
    own_settings = DenoisingSeq2SeqFamily.own_settings | {"choice", "segment_length"}
    ignored_weights = (*DenoisingSeq2SeqFamily.ignored_weights, r"\.embed_positions\.weight$")
    decoder_starts_with_bos = False

    def side_pairs(self, shape: CheckpointSpec, key: str, hf_key: str) -> Iterator[WeightPair]:
        yield from linear_pairs(f"{key}.stack.norm", f"{hf_key}.layer_norm")

    def filler_weights(self, shape: CheckpointSpec) -> Mapping[str, Tensor]:
        sinusoid_table = SinusoidalPositionalEmbedding(shape.settings["width"]).sinusoid_table(
            torch.arange(shape.settings["length"])
        )
        return {f"model.{side}.embed_positions.weight": sinusoid_table for side in SIDES}

    def check_ignored(self, shape: CheckpointSpec, weights: Mapping[str, Tensor]) -> None:
        """Stored positions must be the sinusoids, which are recomputed here."""
        for name, sinusoid_table in self.filler_weights(shape).items():
            stored = weights.get(name)
            if stored is None:
                continue
            rows = min(len(stored), len(sinusoid_table))
            fits = stored.shape[1:] == sinusoid_table.shape[1:]
            if (
                not fits
                or (stored[:rows].float() - sinusoid_table[:rows]).abs().max() > POSITION_TOLERANCE
            ):
                raise UserError(
                    f"the checkpoint's {name} are not PEGASUS' sinusoidal positions, the only "
                    "ones of lmlab's pegasus; it can't be imported."
                )

    def import_settings(
        self, config: Mapping[str, Any], names: frozenset[str], tokenizer: Tokenizer
    ) -> dict[str, Any]:
        mask_id = tokenizer.id(GAP_SENTENCE_TOKEN)
        mask_setting = {} if mask_id is None else {"mask": mask_id}
        return {**super().import_settings(config, names, tokenizer), **mask_setting}

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "PegasusForConditionalGeneration"


FAMILY = Pegasus()
