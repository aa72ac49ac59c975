"""Hugging Face MPNet (Song et al. 2020): positions offset by 2, relative position buckets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lmlab.data.tokenizers import Tokenizer
from lmlab.interop.hf.bert_like import (
    ENCODER_FIXED,
    ENCODER_REQUIRED,
    ENCODER_SETTINGS,
    MaskedLMFamily,
    layer_part_pairs,
    with_defaults,
)
from lmlab.interop.hf.family import CheckpointSpec, layer_names
from lmlab.interop.hf.weight_mapping import (
    ResizeRows,
    TensorMapping,
    WeightPair,
    concatenated_pairs,
    read_whole_number,
    weight_pair,
)

PADDING_ID = 1
"""The padding id hard-coded in transformers, whatever config.json says."""
POSITION_OFFSET = PADDING_ID + 1
"""Row of position 0."""
BUCKET_SETTINGS = {"buckets": 32, "max_distance": 128}


class MpNet(MaskedLMFamily):
    model_type = "mpnet"
    systems = ("mpnet",)
    settings = tuple(with_defaults(ENCODER_SETTINGS, {}))
    derived_settings = frozenset({"length"})
    # The head's activation is gelu whatever the layers use, and ours are the same; the bucketing
    # of distances is hard-coded in transformers.
    fixed = {**ENCODER_FIXED, "activation": "gelu", **BUCKET_SETTINGS, "segments": 0}
    required = {**ENCODER_REQUIRED, "hidden_act": "gelu", "relative_attention_num_buckets": 32}
    own_settings = (MaskedLMFamily.own_settings - BUCKET_SETTINGS.keys()) | {"compensated"}
    pad = PADDING_ID
    prefix = "mpnet."
    optional_weights = {r"^mpnet\.pooler\.": "the pooler"}
    base = "mpnet"
    dense, norm, bias = "lm_head.dense", "lm_head.layer_norm", "lm_head.bias"
    output_bias = bias
    decoder = "lm_head.decoder"

    def position_transform(self, shape: CheckpointSpec) -> TensorMapping:
        length = shape.settings["length"]
        return ResizeRows(ours=length, theirs=length + POSITION_OFFSET, first=POSITION_OFFSET)

    def layers(self, shape: CheckpointSpec) -> Iterator[WeightPair]:
        bias = "mpnet.encoder.relative_attention_bias.weight"
        yield weight_pair("backbone.stack.bias.table.weight", bias)
        for key, hf_key in layer_names(shape, "backbone.stack.blocks", "mpnet.encoder.layer"):
            parts = [f"{hf_key}.attention.attn.{name}" for name in ("q", "k", "v")]
            yield from concatenated_pairs(f"{key}.mixer.qkv_projection", parts)
            output = ("attention.attn.o", "attention.LayerNorm")
            feed_forward = ("intermediate.dense", "output.dense", "output.LayerNorm")
            yield from layer_part_pairs(key, hf_key, *output, *feed_forward)

    def filler_weights(self, shape: CheckpointSpec) -> Mapping[str, Any]:
        return {}

    def import_settings(
        self, config: Mapping[str, Any], names: frozenset[str], tokenizer: Tokenizer
    ) -> dict[str, Any]:
        return {
            "length": read_whole_number(config, "max_position_embeddings", 512) - POSITION_OFFSET
        }

    def export_config(self, shape: CheckpointSpec) -> dict[str, Any]:
        return {"max_position_embeddings": shape.settings["length"] + POSITION_OFFSET}

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "MPNetForMaskedLM"


FAMILY = MpNet()
