"""MPNet (Song et al. 2020): learned positions, counted from 2, beside buckets of distances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lmlab.data.tokenizers import Tokenizer
from lmlab.interop.hf.bert_like import (
    ENCODER_FIXED,
    ENCODER_REQUIRED,
    ENCODER_SETTINGS,
    MaskedFamily,
    with_defaults,
)
from lmlab.interop.hf.config_fields import number
from lmlab.interop.hf.family import Shape, blocks
from lmlab.interop.hf.weight_mapping import (
    Pair,
    Rows,
    Way,
    joined,
    linear,
    pair,
)

PAD = 1
"""The id that their code takes for padding, whatever config.json says."""
FIRST = PAD + 1
"""The row of position 0."""
BUCKETS = {"buckets": 32, "furthest": 128}


class MpNet(MaskedFamily):
    model_type = "mpnet"
    systems = ("mpnet",)
    settings = tuple(with_defaults(ENCODER_SETTINGS, {}))
    told_more = frozenset({"length"})
    # The head's activation is gelu whatever the layers' is, and ours are the same; how distances
    # fall into buckets is a constant of their code.
    fixed = {**ENCODER_FIXED, "activation": "gelu", **BUCKETS, "segments": 0}
    required = {**ENCODER_REQUIRED, "hidden_act": "gelu", "relative_attention_num_buckets": 32}
    free = MaskedFamily.free - BUCKETS.keys()
    pad = PAD
    prefix = "mpnet."
    optional = {r"^mpnet\.pooler\.": "the pooler"}
    base = "mpnet"
    dense, norm, bias = "lm_head.dense", "lm_head.layer_norm", "lm_head.bias"
    output_bias = bias
    decoder = "lm_head.decoder"

    def position_rows(self, shape: Shape) -> Way:
        length = shape.settings["length"]
        return Rows(ours=length, theirs=length + FIRST, first=FIRST)

    def layers(self, shape: Shape) -> Iterator[Pair]:
        bias = "mpnet.encoder.relative_attention_bias.weight"
        yield pair("backbone.stack.bias.table.weight", bias)
        for ours, theirs in blocks(shape, "backbone.stack.blocks", "mpnet.encoder.layer"):
            parts = [f"{theirs}.attention.attn.{name}" for name in ("q", "k", "v")]
            yield from joined(f"{ours}.attention.project", parts)
            yield from linear(f"{ours}.attention.output", f"{theirs}.attention.attn.o")
            yield from linear(f"{ours}.around_attention.norm", f"{theirs}.attention.LayerNorm")
            yield from linear(f"{ours}.feed_forward.widen", f"{theirs}.intermediate.dense")
            yield from linear(f"{ours}.feed_forward.narrow", f"{theirs}.output.dense")
            yield from linear(f"{ours}.around_feed_forward.norm", f"{theirs}.output.LayerNorm")

    def fillers(self, shape: Shape) -> Mapping[str, Any]:
        return {}

    def read_more(
        self, config: Mapping[str, Any], names: frozenset[str], tokenizer: Tokenizer
    ) -> dict[str, Any]:
        return {"length": number(config, "max_position_embeddings", 512) - FIRST}

    def tell_more(self, shape: Shape) -> dict[str, Any]:
        return {"max_position_embeddings": shape.settings["length"] + FIRST}

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "MPNetForMaskedLM"


FAMILY = MpNet()
