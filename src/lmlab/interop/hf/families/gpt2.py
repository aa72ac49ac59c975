"""GPT-2 (Radford et al. 2019): our `gpt`; its linear maps are stored the other way round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lmlab.interop.hf.config_fields import (
    Setting,
    activation,
)
from lmlab.interop.hf.family import Family, Shape, blocks
from lmlab.interop.hf.weight_mapping import (
    TRANSPOSED,
    Pair,
    linear,
    pair,
)


class Gpt2(Family):
    model_type = "gpt2"
    systems = ("gpt",)
    settings = (
        Setting("width", "n_embd", 768),
        Setting("layers", "n_layer", 12),
        Setting("heads", "n_head", 12),
        Setting("inner", "n_inner", 0),
        Setting("length", "n_positions", 1024),
        Setting("dropout", "resid_pdrop", 0.1),
        Setting("attention_dropout", "attn_pdrop", 0.1),
        Setting("norm_epsilon", "layer_norm_epsilon", 1e-5),
        Setting("tied", "tie_word_embeddings", True),
        activation("activation_function", "gelu_new"),
    )
    required = {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    }
    # What it was trained for is no part of a checkpoint, but sampled objectives add an output bias.
    fixed = {"objective": "next-token"}
    prefix = "transformer."
    # Causal masks, which old versions kept beside the weights.
    ignored = (r"\.attn\.(bias|masked_bias)$",)

    def pairs(self, shape: Shape) -> Iterator[Pair]:
        yield pair("backbone.embedding.tokens.weight", "transformer.wte.weight", shape.token_rows)
        yield pair("backbone.embedding.positions.table.weight", "transformer.wpe.weight")
        for ours, theirs in blocks(shape, "backbone.stack.blocks", "transformer.h"):
            yield from linear(f"{ours}.attention.project", f"{theirs}.attn.c_attn", TRANSPOSED)
            yield from linear(f"{ours}.attention.output", f"{theirs}.attn.c_proj", TRANSPOSED)
            yield from linear(f"{ours}.feed_forward.widen", f"{theirs}.mlp.c_fc", TRANSPOSED)
            yield from linear(f"{ours}.feed_forward.narrow", f"{theirs}.mlp.c_proj", TRANSPOSED)
            yield from linear(f"{ours}.around_attention.norm", f"{theirs}.ln_1")
            yield from linear(f"{ours}.around_feed_forward.norm", f"{theirs}.ln_2")
        yield from linear("backbone.stack.norm", "transformer.ln_f")
        if not shape.settings["tied"]:
            yield pair("emission.weight", "lm_head.weight", shape.token_rows)

    def our_copies(self, shape: Shape) -> Mapping[str, str]:
        return super().our_copies(shape) if shape.settings["tied"] else {}

    def their_copies(self, shape: Shape) -> Mapping[str, str]:
        return {"lm_head.weight": "transformer.wte.weight"} if shape.settings["tied"] else {}

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "GPT2LMHeadModel"

    def framing(self, settings: Mapping[str, Any]) -> str:
        return "start text"

    def tell_more(self, shape: Shape) -> dict[str, Any]:
        return {"embd_pdrop": shape.settings["dropout"]}


FAMILY = Gpt2()
