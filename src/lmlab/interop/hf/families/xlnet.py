"""Hugging Face XLNet (Yang et al. 2019): attention weights per head (width, heads, head width)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lmlab.interop.hf.family import CheckpointFamily, CheckpointSpec, layer_names
from lmlab.interop.hf.weight_mapping import (
    ConcatenateMapped,
    ConfigField,
    Reshape,
    WeightPair,
    activation_field,
    linear_pairs,
    weight_pair,
)


class XlNet(CheckpointFamily):
    model_type = "xlnet"
    systems = ("xlnet",)
    settings = (
        ConfigField("width", "d_model", 1024),
        ConfigField("layers", "n_layer", 24),
        ConfigField("heads", "n_head", 16),
        ConfigField("ffn_width", "d_inner", 4096),
        ConfigField("dropout", "dropout", 0.1),
        ConfigField("attention_dropout", "dropout", 0.1),
        ConfigField("norm_epsilon", "layer_norm_eps", 1e-12),
        ConfigField(
            "clamp_length", "clamp_len", -1, lambda size: max(0, size), lambda size: size or -1
        ),
        ConfigField("memory", "mem_len", 0, write=lambda size: size or None),
        activation_field("ff_activation", "gelu"),
    )
    fixed = {
        "positions": "transformer-xl",
        "relative_segments": True,
        "attention_biases": False,
        "pre_norm": False,
        "embedding_norm": False,
        "length": 512,
    }
    required = {
        "attn_type": "bi",
        "bi_data": False,
        "same_length": False,
        "untie_r": True,
        "tie_word_embeddings": True,
    }
    # The segment length is not in config.json: attention uses relative positions only.
    own_settings = CheckpointFamily.own_settings | {
        "partial_prediction",
        "left_to_right",
        "length",
        "max_span",
        "two_segments",
    }
    prefix = "transformer."
    output_bias = "lm_loss.bias"
    inputs = ("input_ids", "token_type_ids", "attention_mask")

    def pairs(self, shape: CheckpointSpec) -> Iterator[WeightPair]:
        width = shape.settings["width"]
        tokens = "transformer.word_embedding.weight"
        yield weight_pair("backbone.embedding.tokens.weight", tokens, shape.token_row_transform)
        query = Reshape(ours=(width,), theirs=(1, 1, width))
        yield weight_pair("backbone.start.weight", "transformer.mask_emb", query)
        for key, hf_key in layer_names(shape, "backbone.stack.blocks", "transformer.layer"):
            yield from _attention(shape, f"{key}.mixer", f"{hf_key}.rel_attn")
            yield from linear_pairs(f"{key}.mixer_connection.norm", f"{hf_key}.rel_attn.layer_norm")
            yield from linear_pairs(f"{key}.feed_forward.up_projection", f"{hf_key}.ff.layer_1")
            yield from linear_pairs(f"{key}.feed_forward.down_projection", f"{hf_key}.ff.layer_2")
            yield from linear_pairs(
                f"{key}.feed_forward_connection.norm", f"{hf_key}.ff.layer_norm"
            )
        yield weight_pair("emission.bias", "lm_loss.bias", shape.token_row_transform)

    def their_tied_names(self, shape: CheckpointSpec) -> Mapping[str, str]:
        return {"lm_loss.weight": "transformer.word_embedding.weight"}

    def export_config(self, shape: CheckpointSpec) -> dict[str, Any]:
        return {"dropout": shape.settings["dropout"]}

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "XLNetLMHeadModel"


def _attention(shape: CheckpointSpec, key: str, hf_key: str) -> Iterator[WeightPair]:
    width, heads = shape.settings["width"], shape.settings["heads"]
    heads_shape = (width, heads, width // heads)
    mapped = Reshape(ours=(width, width), theirs=heads_shape, order=(1, 2, 0))
    names = tuple(f"{hf_key}.{name}" for name in ("q", "k", "v"))
    yield WeightPair(f"{key}.qkv_projection.weight", names, ConcatenateMapped(mapped))
    yield weight_pair(
        f"{key}.output.weight", f"{hf_key}.o", Reshape(ours=(width, width), theirs=heads_shape)
    )
    yield weight_pair(f"{key}.positions.project.weight", f"{hf_key}.r", mapped)
    yield weight_pair(f"{key}.positions.content_bias", f"{hf_key}.r_w_bias")
    yield weight_pair(f"{key}.positions.position_bias", f"{hf_key}.r_r_bias")
    yield weight_pair(f"{key}.positions.segment_bias", f"{hf_key}.r_s_bias")
    yield weight_pair(f"{key}.positions.segments", f"{hf_key}.seg_embed")


FAMILY = XlNet()
