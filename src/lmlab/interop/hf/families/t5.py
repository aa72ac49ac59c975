"""Hugging Face T5 (Raffel et al. 2020), T5 1.1 (gated feed-forward, untied output); sentinels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.interop.hf.bart_like import SIDES
from lmlab.interop.hf.family import CheckpointFamily, CheckpointSpec
from lmlab.interop.hf.weight_mapping import (
    ACTIVATIONS,
    ConfigField,
    WeightPair,
    concatenated_pairs,
    from_hf_activation,
    linear_pairs,
    read_whole_number,
    weight_pair,
)
from lmlab.sampling.prompts import SENTINEL

GATED_PREFIX = "gated-"


class T5(CheckpointFamily):
    model_type = "t5"
    systems = ("t5",)
    settings = (
        ConfigField("width", "d_model", 512),
        ConfigField("layers", "num_layers", 6),
        ConfigField("heads", "num_heads", 8),
        ConfigField("ffn_width", "d_ff", 2048),
        ConfigField("length", "n_positions", 512),
        ConfigField("dropout", "dropout_rate", 0.1),
        ConfigField("attention_dropout", "dropout_rate", 0.1),
        ConfigField("buckets", "relative_attention_num_buckets", 32),
        ConfigField("max_distance", "relative_attention_max_distance", 128),
        ConfigField("norm_epsilon", "layer_norm_epsilon", 1e-6),
    )
    derived_settings = frozenset(
        {
            "head_width",
            "activation",
            "gated_ffn",
            "tied",
            "sentinels",
            "first_sentinel",
            "sentinel_step",
            "decoder_start",
        }
    )
    fixed = {
        "positions": "buckets",
        "norm": "rms",
        "scaled_scores": False,
        "biases": False,
        "pre_norm": True,
        "embedding_norm": False,
        "tied_encoder_decoder": False,
    }
    required = {"is_encoder_decoder": True}
    own_settings = CheckpointFamily.own_settings | {
        "objective",
        "rate",
        "mean_span_length",
        "free_placement",
        "full_mask_rate",
        "pairs",
        "final_sentinel",
    }
    # An unused table stored by early versions.
    ignored_weights = (r"EncDecAttention\.relative_attention_bias\.weight$",)

    def pairs(self, shape: CheckpointSpec) -> Iterator[WeightPair]:
        tokens = "backbone.encoder.embedding.tokens.weight"
        yield weight_pair(tokens, "shared.weight", shape.token_row_transform)
        for side in SIDES:
            bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            yield weight_pair(f"backbone.{side}.stack.bias.table.weight", bias)
            for layer in range(shape.layers):
                key = f"backbone.{side}.stack.blocks.{layer}"
                yield from _layer(shape, key, f"{side}.block.{layer}.layer", side == "decoder")
            norm = f"{side}.final_layer_norm"
            yield from linear_pairs(f"backbone.{side}.stack.norm", norm, bias=False)
        if not shape.settings["tied"]:
            yield weight_pair("emission.weight", "lm_head.weight", shape.token_row_transform)

    def our_tied_names(self, shape: CheckpointSpec) -> Mapping[str, str]:
        tokens = "backbone.encoder.embedding.tokens.weight"
        shared = {"backbone.decoder.embedding.tokens.weight": tokens}
        return {**shared, "emission.weight": tokens} if shape.settings["tied"] else shared

    def their_tied_names(self, shape: CheckpointSpec) -> Mapping[str, str]:
        copies = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
        copies += ["lm_head.weight"] if shape.settings["tied"] else []
        return dict.fromkeys(copies, "shared.weight")

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "T5ForConditionalGeneration"

    def input_template(self, settings: Mapping[str, Any]) -> str:
        return "text end"

    def extra(self, settings: Mapping[str, Any], vocabulary: Vocabulary) -> tuple[str, ...]:
        if settings["first_sentinel"] >= 0:
            return ()
        return tuple(SENTINEL.format(index) for index in range(settings["sentinels"]))

    def import_settings(
        self, config: Mapping[str, Any], names: frozenset[str], tokenizer: Tokenizer
    ) -> dict[str, Any]:
        layers = read_whole_number(config, "num_layers", 6)
        if read_whole_number(config, "num_decoder_layers", layers) != layers:
            raise UserError(
                "the checkpoint's encoder and decoder must have the same number of layers in "
                f"lmlab's t5, got {layers} and {config['num_decoder_layers']}."
            )
        units = str(config.get("feed_forward_proj", "relu"))
        gated = units.startswith(GATED_PREFIX)
        # Their gated gelu is the tanh approximation.
        name = "gelu_new" if units == f"{GATED_PREFIX}gelu" else units.removeprefix(GATED_PREFIX)
        start_id = read_whole_number(
            config, "decoder_start_token_id", read_whole_number(config, "pad_token_id", 0)
        )
        return {
            "head_width": read_whole_number(config, "d_kv", 64),
            "gated_ffn": gated,
            "activation": from_hf_activation(name),
            "tied": _is_tied(config, names),
            "decoder_start": start_id,
            **_sentinels(tokenizer),
        }

    def export_config(self, shape: CheckpointSpec) -> dict[str, Any]:
        settings, vocabulary = shape.settings, shape.vocabulary
        units, start_id = ACTIVATIONS[settings["activation"]], settings["decoder_start"]
        if settings["gated_ffn"]:
            units = (
                f"{GATED_PREFIX}gelu"
                if settings["activation"] == "gelu-tanh"
                else f"{GATED_PREFIX}{units}"
            )
        if units == f"{GATED_PREFIX}gelu" and settings["activation"] == "gelu":
            raise UserError(
                "the run's gated units use the exact gelu, but gated-gelu in a t5 checkpoint "
                "is the tanh approximation; it can't be exported."
            )
        return {
            "num_decoder_layers": settings["layers"],
            "d_kv": settings["head_width"] or settings["width"] // settings["heads"],
            "feed_forward_proj": units,
            "tie_word_embeddings": settings["tied"],
            "scale_decoder_outputs": settings["tied"],
            "decoder_start_token_id": vocabulary.bos if start_id < 0 else start_id,
            "dropout_rate": settings["dropout"],
        }


def _is_tied(config: Mapping[str, Any], names: frozenset[str]) -> bool:
    """Whether the output is tied to the embedding and scaled; in lmlab the two go together."""
    tied = config.get("tie_word_embeddings") is not False
    scaled = config.get("scale_decoder_outputs", tied)
    if not scaled and "lm_head.weight" not in names:
        raise UserError(
            "the checkpoint does not scale its output and has no lm_head.weight; lmlab's t5 scales "
            "a tied output and no other."
        )
    return bool(scaled)


def _sentinels(tokenizer: Tokenizer) -> dict[str, int]:
    """The tokenizer's sentinel ids; if it has none, ids are appended."""
    ids: list[int] = []
    for index in count():
        sentinel_id = tokenizer.id(SENTINEL.format(index))
        if sentinel_id is None:
            break
        ids.append(sentinel_id)
    if not ids:
        return {}
    step = ids[1] - ids[0] if len(ids) > 1 else 1
    expected = [ids[0] + step * index for index in range(len(ids))]
    if ids != expected or abs(step) != 1:
        raise UserError(
            "the tokenizer's sentinels <extra_id_0>, <extra_id_1> … do not have consecutive ids."
        )
    return {"sentinels": len(ids), "first_sentinel": ids[0], "sentinel_step": step}


def _layer(
    shape: CheckpointSpec, key: str, hf_key: str, cross_attention: bool
) -> Iterator[WeightPair]:
    """Weight pairs of one layer; theirs numbers sublayers, each with the norm before it."""
    yield from _attention(f"{key}.mixer", f"{hf_key}.0.SelfAttention")
    yield from linear_pairs(f"{key}.mixer_connection.norm", f"{hf_key}.0.layer_norm", bias=False)
    sublayer = 1
    if cross_attention:
        sublayer = 2
        yield from _attention(f"{key}.cross_attention", f"{hf_key}.1.EncDecAttention")
        yield from linear_pairs(
            f"{key}.cross_attention_connection.norm", f"{hf_key}.1.layer_norm", bias=False
        )
    dense, gated = f"{hf_key}.{sublayer}.DenseReluDense", shape.settings["gated_ffn"]
    widen = f"{dense}.wi_0" if gated else f"{dense}.wi"
    yield from linear_pairs(f"{key}.feed_forward.up_projection", widen, bias=False)
    if gated:
        yield from linear_pairs(f"{key}.feed_forward.gate", f"{dense}.wi_1", bias=False)
    yield from linear_pairs(f"{key}.feed_forward.down_projection", f"{dense}.wo", bias=False)
    norm = f"{hf_key}.{sublayer}.layer_norm"
    yield from linear_pairs(f"{key}.feed_forward_connection.norm", norm, bias=False)


def _attention(key: str, hf_key: str) -> Iterator[WeightPair]:
    names = [f"{hf_key}.{name}" for name in ("q", "k", "v")]
    yield from concatenated_pairs(f"{key}.qkv_projection", names, bias=False)
    yield from linear_pairs(f"{key}.output", f"{hf_key}.o", bias=False)


FAMILY = T5()
