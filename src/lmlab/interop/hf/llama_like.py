"""Checkpoints in the format of Llama: Llama, SmolLM, Mistral, Qwen2 and Qwen3, our `llama`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from lmlab.core.errors import UserError
from lmlab.data.tokenizers import Tokenizer
from lmlab.interop.hf.family import CheckpointFamily, CheckpointSpec, layer_names
from lmlab.interop.hf.weight_mapping import (
    ConcatenateRows,
    ConfigField,
    WeightPair,
    activation_field,
    concatenated_pairs,
    linear_pairs,
    read_whole_number,
    weight_pair,
)
from lmlab.layers.rotary_scaling import UNSCALED, LinearScaling, Llama3Scaling, parse_rotary_scaling

LLAMA_SETTINGS: dict[str, Any] = {
    "positions": "rotary",
    "norm": "rms",
    "gated_ffn": True,
    "biases": False,
    "qkv_biases": False,
    "query_key_norm": False,
    # A sampled objective adds an output bias.
    "objective": "next-token",
    "dropout": 0.0,
}
"""Our settings that all of these checkpoints have in common."""
LONGEST = 2048
"""Longest text if config.json has no max_position_embeddings."""


class LlamaLike(CheckpointFamily):
    """Base class of the families whose layers have Llama's names."""

    systems = ("llama",)
    settings = (
        ConfigField("width", "hidden_size", 4096),
        ConfigField("layers", "num_hidden_layers", 32),
        ConfigField("heads", "num_attention_heads", 32),
        ConfigField("ffn_width", "intermediate_size", 11008),
        ConfigField("length", "max_position_embeddings", LONGEST),
        ConfigField("attention_dropout", "attention_dropout", 0.0),
        ConfigField("norm_epsilon", "rms_norm_eps", 1e-6),
        ConfigField("tied", "tie_word_embeddings", False),
        activation_field("hidden_act", "silu"),
    )
    derived_settings = frozenset({"head_width", "key_value_heads", "rotary_base", "rotary_scaling"})
    fixed = LLAMA_SETTINGS
    # Their networks have no dropout but that of attention; ours matters in training alone.
    own_settings = CheckpointFamily.own_settings | {"dropout"}
    prefix = "model."
    # Rotary frequencies, which old versions stored with the weights.
    ignored_weights = (r"rotary_emb\.inv_freq$",)
    key_value_heads: ClassVar[int] = 0
    """Key and value heads if config.json lacks them; 0 for as many as heads."""
    head_width: ClassVar[int] = 0
    """Size of a head if config.json lacks it; 0 for width / heads."""

    def pairs(self, shape: CheckpointSpec) -> Iterator[WeightPair]:
        tokens = shape.token_row_transform
        yield weight_pair("backbone.embedding.tokens.weight", "model.embed_tokens.weight", tokens)
        for key, hf_key in layer_names(shape, "backbone.stack.blocks", "model.layers"):
            yield from _attention_pairs(shape.settings, f"{key}.mixer", f"{hf_key}.self_attn")
            # Their gate is what goes through the activation.
            for ours, theirs in (("up_projection", "gate_proj"), ("gate", "up_proj")):
                yield from linear_pairs(
                    f"{key}.feed_forward.{ours}", f"{hf_key}.mlp.{theirs}", bias=False
                )
            yield from linear_pairs(
                f"{key}.feed_forward.down_projection", f"{hf_key}.mlp.down_proj", bias=False
            )
            norms = {"mixer": "input_layernorm", "feed_forward": "post_attention_layernorm"}
            for sublayer, norm in norms.items():
                yield from linear_pairs(
                    f"{key}.{sublayer}_connection.norm", f"{hf_key}.{norm}", bias=False
                )
        yield from linear_pairs("backbone.stack.norm", "model.norm", bias=False)
        if not shape.settings["tied"]:
            yield weight_pair("emission.weight", "lm_head.weight", tokens)

    def our_tied_names(self, shape: CheckpointSpec) -> Mapping[str, str]:
        return super().our_tied_names(shape) if shape.settings["tied"] else {}

    def their_tied_names(self, shape: CheckpointSpec) -> Mapping[str, str]:
        return {"lm_head.weight": "model.embed_tokens.weight"} if shape.settings["tied"] else {}

    def input_template(self, settings: Mapping[str, Any]) -> str:
        return "start text"

    def import_settings(
        self, config: Mapping[str, Any], names: frozenset[str], tokenizer: Tokenizer
    ) -> dict[str, Any]:
        heads = read_whole_number(config, "num_attention_heads", 32)
        width = read_whole_number(config, "hidden_size", 4096)
        return {
            "head_width": read_whole_number(config, "head_dim", self.head_width or width // heads),
            "key_value_heads": read_whole_number(
                config, "num_key_value_heads", self.key_value_heads or heads
            ),
            **_rotary_settings(config),
        }

    def export_config(self, shape: CheckpointSpec) -> dict[str, Any]:
        settings = shape.settings
        return {
            "head_dim": _head_width(settings),
            "num_key_value_heads": settings["key_value_heads"] or settings["heads"],
            **_rotary_config(settings),
        }

    def import_notes(self, config: Mapping[str, Any]) -> list[str]:
        if _rotary_type(_rotary_entries(config)) != "dynamic":
            return []
        length = config.get("max_position_embeddings", LONGEST)
        return [
            "dynamic scaling of rotary positions was left out: it only concerns texts longer than "
            f"max_position_embeddings ({length}), which lmlab refuses."
        ]


def _head_width(settings: Mapping[str, Any]) -> int:
    return int(settings["head_width"] or settings["width"] // settings["heads"])


def _attention_pairs(settings: Mapping[str, Any], key: str, hf_key: str) -> Iterator[WeightPair]:
    """Queries, keys and values, in one matrix of ours, the output and the norms of a layer."""
    head, groups = _head_width(settings), settings["key_value_heads"] or settings["heads"]
    rows = ConcatenateRows((settings["heads"] * head, groups * head, groups * head))
    names = [f"{hf_key}.{name}_proj" for name in ("q", "k", "v")]
    biases = settings["qkv_biases"]
    yield from concatenated_pairs(f"{key}.qkv_projection", names, rows, bias=biases)
    yield from linear_pairs(f"{key}.output", f"{hf_key}.o_proj", bias=False)
    if settings["query_key_norm"]:
        yield from linear_pairs(f"{key}.query_norm", f"{hf_key}.q_norm", bias=False)
        yield from linear_pairs(f"{key}.key_norm", f"{hf_key}.k_norm", bias=False)


# Rotary positions ---------------------------------------------------------------------------------


def _rotary_entries(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Their entries of rotary positions: `rope_parameters`, which old versions call
    `rope_scaling`."""
    entries = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(entries, dict):
        raise UserError(
            "rope_parameters in the checkpoint's config.json must be an object such as "
            f'{{"rope_theta": 10000.0, "rope_type": "default"}}, got {entries!r}.'
        )
    return entries


def _rotary_type(entries: Mapping[str, Any]) -> str:
    return str(entries.get("rope_type") or entries.get("type") or "default")


def _rotary_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Our settings of their rotary positions."""
    entries = _rotary_entries(config)
    base = ConfigField("rotary_base", "rope_theta", 10_000.0).read_from({**config, **entries})
    part = {**config, **entries}.get("partial_rotary_factor")
    if part not in (None, 1):
        raise UserError(
            "partial_rotary_factor in the checkpoint's config.json must be 1 in lmlab's llama, got "
            f"{part!r}."
        )
    return {"rotary_base": float(base), "rotary_scaling": _scaling_setting(entries, config)}


def _scaling_setting(entries: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    def number(key: str, default: float) -> float:
        return float(ConfigField(key, key, default).read_from(entries))

    kind = _rotary_type(entries)
    match kind:
        # Dynamic scaling begins where our longest texts end.
        case "default" | "dynamic":
            return UNSCALED
        case "linear":
            return LinearScaling(number("factor", 1.0)).setting
        case "llama3":
            length = read_whole_number(config, "max_position_embeddings", LONGEST)
            return Llama3Scaling(
                number("factor", 8.0),
                number("low_freq_factor", 1.0),
                number("high_freq_factor", 4.0),
                read_whole_number(entries, "original_max_position_embeddings", length),
            ).setting
    raise UserError(
        "the checkpoint's rotary positions must be scaled by default, linear, llama3 or dynamic in "
        f"lmlab's llama, got {kind!r}."
    )


def _rotary_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Their entries of our rotary positions, by the names of versions 5 and 4 of transformers."""
    base: dict[str, Any] = {"rope_theta": settings["rotary_base"]}
    match parse_rotary_scaling(settings["rotary_scaling"]):
        case LinearScaling(factor):
            scaling: dict[str, Any] = {"rope_type": "linear", "factor": factor}
        case Llama3Scaling(factor, low, high, length):
            scaling = {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": length,
            }
        case _:
            unscaled = {"rope_type": "default"}
            return {**base, "rope_scaling": None, "rope_parameters": {**base, **unscaled}}
    return {**base, "rope_scaling": scaling, "rope_parameters": {**base, **scaling}}
