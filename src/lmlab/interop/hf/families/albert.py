"""Hugging Face ALBERT (Lan et al. 2020): cross-layer sharing, factorised embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lmlab.core.errors import UserError
from lmlab.data.tokenizers import Tokenizer
from lmlab.interop.hf.bert_like import (
    ENCODER_FIXED,
    ENCODER_REQUIRED,
    LENGTH,
    MASKED_LM_OWN_SETTINGS,
    SEGMENTS,
    MaskedLMFamily,
    has_pair_head,
    layer_part_pairs,
    pooler_pairs,
)
from lmlab.interop.hf.family import CheckpointSpec
from lmlab.interop.hf.weight_mapping import (
    ConfigField,
    WeightPair,
    activation_field,
    concatenated_pairs,
    linear_pairs,
)

CLASSIFIER = "sop_classifier.classifier"
LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0"


class Albert(MaskedLMFamily):
    model_type = "albert"
    systems = ("albert",)
    settings = (
        ConfigField("width", "hidden_size", 4096),
        ConfigField("embedding_width", "embedding_size", 128),
        ConfigField("layers", "num_hidden_layers", 12),
        ConfigField("heads", "num_attention_heads", 64),
        ConfigField("ffn_width", "intermediate_size", 16384),
        ConfigField("dropout", "hidden_dropout_prob", 0.0),
        ConfigField("attention_dropout", "attention_probs_dropout_prob", 0.0),
        ConfigField("norm_epsilon", "layer_norm_eps", 1e-12),
        LENGTH,
        SEGMENTS,
        activation_field("hidden_act", "gelu_new"),
    )
    derived_settings = frozenset({"pairs"})
    fixed = {**ENCODER_FIXED, "shared_layers": True}
    required = {**ENCODER_REQUIRED, "num_hidden_groups": 1, "inner_group_num": 1}
    own_settings = MASKED_LM_OWN_SETTINGS | {"max_span_length"}
    prefix = "albert."
    heads = ("predictions.", "sop_classifier.")
    inputs = ("input_ids", "token_type_ids", "attention_mask")
    optional_weights = {r"^albert\.pooler\.": "the pooler"}
    base = "albert"
    dense, norm = "predictions.dense", "predictions.LayerNorm"
    bias, decoder = "predictions.bias", "predictions.decoder"
    output_bias = bias

    def pairs(self, shape: CheckpointSpec) -> Iterator[WeightPair]:
        yield from super().pairs(shape)
        if has_pair_head(shape.settings):
            yield from pooler_pairs("albert.pooler", CLASSIFIER)

    def layers(self, shape: CheckpointSpec) -> Iterator[WeightPair]:
        widening = "albert.encoder.embedding_hidden_mapping_in"
        yield from linear_pairs("backbone.embedding.projection", widening)
        key = "backbone.stack.blocks.0"
        parts = [f"{LAYER}.attention.{name}" for name in ("query", "key", "value")]
        yield from concatenated_pairs(f"{key}.mixer.qkv_projection", parts)
        output, norm = ("attention.dense", "attention.LayerNorm"), "full_layer_layer_norm"
        yield from layer_part_pairs(key, LAYER, *output, "ffn", "ffn_output", norm)

    def import_settings(
        self, config: Mapping[str, Any], names: frozenset[str], tokenizer: Tokenizer
    ) -> dict[str, Any]:
        if config.get("embedding_size", 128) == config.get("hidden_size", 4096):
            raise UserError(
                "the checkpoint projects token embeddings that are as wide as its layers; "
                "lmlab's albert has a projection only if the widths differ."
            )
        return {"pairs": "order" if f"{CLASSIFIER}.weight" in names else "none"}

    def export_config(self, shape: CheckpointSpec) -> dict[str, Any]:
        if shape.settings["pairs"] == "next":
            raise UserError(
                "the run was trained on next-sentence prediction, but an albert checkpoint's "
                "head predicts sentence order; it can't be exported."
            )
        if not shape.settings["embedding_width"]:
            raise UserError(
                "the run's token embeddings are as wide as its layers, but an albert "
                "checkpoint always has a projection between them; it can't be exported."
            )
        return {}

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "AlbertForPreTraining" if has_pair_head(settings) else "AlbertForMaskedLM"


FAMILY = Albert()
