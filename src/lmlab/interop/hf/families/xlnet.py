"""XLNet (Yang et al. 2019): attention's matrices are kept by head, (width, heads, head width)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lmlab.interop.hf.config_fields import (
    Setting,
    activation,
)
from lmlab.interop.hf.family import Family, Shape, blocks
from lmlab.interop.hf.weight_mapping import (
    Each,
    Pair,
    Reshaped,
    linear,
    pair,
)


class XlNet(Family):
    model_type = "xlnet"
    systems = ("xlnet",)
    settings = (
        Setting("width", "d_model", 1024),
        Setting("layers", "n_layer", 24),
        Setting("heads", "n_head", 16),
        Setting("inner", "d_inner", 4096),
        Setting("dropout", "dropout", 0.1),
        Setting("attention_dropout", "dropout", 0.1),
        Setting("norm_epsilon", "layer_norm_eps", 1e-12),
        Setting("clip_distance", "clamp_len", -1, lambda far: max(0, far), lambda far: far or -1),
        Setting("memory", "mem_len", 0, write=lambda places: places or None),
        activation("ff_activation", "gelu"),
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
    # How much is read at once is not told: attention knows distances alone.
    free = Family.free | {"one_in", "left_to_right", "length"}
    prefix = "transformer."
    output_bias = "lm_loss.bias"
    inputs = ("input_ids", "token_type_ids", "attention_mask")

    def pairs(self, shape: Shape) -> Iterator[Pair]:
        width = shape.settings["width"]
        tokens = "transformer.word_embedding.weight"
        yield pair("backbone.embedding.tokens.weight", tokens, shape.token_rows)
        query = Reshaped(ours=(width,), theirs=(1, 1, width))
        yield pair("backbone.start.weight", "transformer.mask_emb", query)
        for ours, theirs in blocks(shape, "backbone.stack.blocks", "transformer.layer"):
            yield from _attention(shape, f"{ours}.attention", f"{theirs}.rel_attn")
            yield from linear(f"{ours}.around_attention.norm", f"{theirs}.rel_attn.layer_norm")
            yield from linear(f"{ours}.feed_forward.widen", f"{theirs}.ff.layer_1")
            yield from linear(f"{ours}.feed_forward.narrow", f"{theirs}.ff.layer_2")
            yield from linear(f"{ours}.around_feed_forward.norm", f"{theirs}.ff.layer_norm")
        yield pair("emission.bias", "lm_loss.bias", shape.token_rows)

    def their_copies(self, shape: Shape) -> Mapping[str, str]:
        return {"lm_loss.weight": "transformer.word_embedding.weight"}

    def tell_more(self, shape: Shape) -> dict[str, Any]:
        return {"dropout": shape.settings["dropout"]}

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "XLNetLMHeadModel"


def _attention(shape: Shape, ours: str, theirs: str) -> Iterator[Pair]:
    width, heads = shape.settings["width"], shape.settings["heads"]
    by_head = (width, heads, width // heads)
    mapped = Reshaped(ours=(width, width), theirs=by_head, order=(1, 2, 0))
    names = tuple(f"{theirs}.{name}" for name in ("q", "k", "v"))
    yield Pair(f"{ours}.project.weight", names, Each(mapped))
    yield pair(
        f"{ours}.output.weight", f"{theirs}.o", Reshaped(ours=(width, width), theirs=by_head)
    )
    yield pair(f"{ours}.positions.project.weight", f"{theirs}.r", mapped)
    yield pair(f"{ours}.positions.content_bias", f"{theirs}.r_w_bias")
    yield pair(f"{ours}.positions.position_bias", f"{theirs}.r_r_bias")
    yield pair(f"{ours}.positions.segment_bias", f"{theirs}.r_s_bias")
    yield pair(f"{ours}.positions.segments", f"{theirs}.seg_embed")


FAMILY = XlNet()
