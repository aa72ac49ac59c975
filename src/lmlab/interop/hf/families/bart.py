"""Hugging Face BART (Lewis et al. 2020): post-norm; positions are offset by two rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lmlab.interop.hf.bart_like import DenoisingSeq2SeqFamily
from lmlab.interop.hf.family import CheckpointSpec
from lmlab.interop.hf.weight_mapping import ResizeRows, WeightPair, linear_pairs, weight_pair

POSITION_OFFSET = 2
"""Row of position 0."""


class Bart(DenoisingSeq2SeqFamily):
    model_type = "bart"
    systems = ("bart",)
    fixed = {
        "pre_norm": False,
        "embedding_norm": True,
        "positions": "learned",
        "norm_epsilon": 1e-5,
        "tied_encoder_decoder": False,
    }
    own_settings = DenoisingSeq2SeqFamily.own_settings | {"noises", "mean_span"}
    decoder_starts_with_bos = True

    def side_pairs(self, shape: CheckpointSpec, key: str, hf_key: str) -> Iterator[WeightPair]:
        length = shape.settings["length"]
        positions = ResizeRows(ours=length, theirs=length + POSITION_OFFSET, first=POSITION_OFFSET)
        table = f"{key}.embedding.positions.table.weight"
        yield weight_pair(table, f"{hf_key}.embed_positions.weight", positions)
        yield from linear_pairs(f"{key}.embedding.norm", f"{hf_key}.layernorm_embedding")

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "BartForConditionalGeneration"


FAMILY = Bart()
