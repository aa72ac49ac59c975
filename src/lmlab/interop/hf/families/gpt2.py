"""Hugging Face GPT-2 (Radford et al. 2019), our `gpt`; Conv1D weights are transposed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lmlab.interop.hf.family import CheckpointFamily, CheckpointSpec, layer_names
from lmlab.interop.hf.weight_mapping import (
    TRANSPOSE,
    ConfigField,
    WeightPair,
    activation_field,
    linear_pairs,
    weight_pair,
)


class Gpt2(CheckpointFamily):
    model_type = "gpt2"
    systems = ("gpt",)
    settings = (
        ConfigField("width", "n_embd", 768),
        ConfigField("layers", "n_layer", 12),
        ConfigField("heads", "n_head", 12),
        ConfigField("ffn_width", "n_inner", 0),
        ConfigField("length", "n_positions", 1024),
        ConfigField("dropout", "resid_pdrop", 0.1),
        ConfigField("attention_dropout", "attn_pdrop", 0.1),
        ConfigField("norm_epsilon", "layer_norm_epsilon", 1e-5),
        ConfigField("tied", "tie_word_embeddings", True),
        activation_field("activation_function", "gelu_new"),
    )
    required = {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    }
    # The objective is not part of a checkpoint, but sampled objectives add an output bias.
    fixed = {"objective": "next-token"}
    prefix = "transformer."
    # Causal masks, which old versions stored with the weights.
    ignored_weights = (r"\.attn\.(bias|masked_bias)$",)

    def pairs(self, shape: CheckpointSpec) -> Iterator[WeightPair]:
        yield weight_pair(
            "backbone.embedding.tokens.weight", "transformer.wte.weight", shape.token_row_transform
        )
        yield weight_pair("backbone.embedding.positions.table.weight", "transformer.wpe.weight")
        for key, hf_key in layer_names(shape, "backbone.stack.blocks", "transformer.h"):
            yield from linear_pairs(
                f"{key}.mixer.qkv_projection", f"{hf_key}.attn.c_attn", TRANSPOSE
            )
            yield from linear_pairs(f"{key}.mixer.output", f"{hf_key}.attn.c_proj", TRANSPOSE)
            yield from linear_pairs(
                f"{key}.feed_forward.up_projection", f"{hf_key}.mlp.c_fc", TRANSPOSE
            )
            yield from linear_pairs(
                f"{key}.feed_forward.down_projection", f"{hf_key}.mlp.c_proj", TRANSPOSE
            )
            yield from linear_pairs(f"{key}.mixer_connection.norm", f"{hf_key}.ln_1")
            yield from linear_pairs(f"{key}.feed_forward_connection.norm", f"{hf_key}.ln_2")
        yield from linear_pairs("backbone.stack.norm", "transformer.ln_f")
        if not shape.settings["tied"]:
            yield weight_pair("emission.weight", "lm_head.weight", shape.token_row_transform)

    def our_tied_names(self, shape: CheckpointSpec) -> Mapping[str, str]:
        return super().our_tied_names(shape) if shape.settings["tied"] else {}

    def their_tied_names(self, shape: CheckpointSpec) -> Mapping[str, str]:
        return {"lm_head.weight": "transformer.wte.weight"} if shape.settings["tied"] else {}

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "GPT2LMHeadModel"

    def input_template(self, settings: Mapping[str, Any]) -> str:
        return "start text"

    def export_config(self, shape: CheckpointSpec) -> dict[str, Any]:
        return {"embd_pdrop": shape.settings["dropout"]}


FAMILY = Gpt2()
