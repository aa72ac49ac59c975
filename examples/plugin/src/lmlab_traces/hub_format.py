"""Checkpoints of traces in the Hub's format: names of settings and weights in their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lmlab.interop.hf.family import CheckpointFamily, CheckpointSpec
from lmlab.interop.hf.weight_mapping import ConfigField, WeightPair, weight_pair


class TracesFamily(CheckpointFamily):
    """The model type `traces`: `lmlab export-hf` writes it, and `import-hf` reads it."""

    model_type = "traces"
    systems = ("traces",)
    output_bias = "output.bias"
    settings = (
        ConfigField("width", "hidden_size", 64),
        ConfigField("rates", "decay_rates", [0.0, 0.5, 0.9], read=tuple, write=list),
    )

    def pairs(self, shape: CheckpointSpec) -> Iterator[WeightPair]:
        rows = shape.token_row_transform
        yield weight_pair("backbone.embedding.weight", "embedding.weight", rows)
        yield weight_pair("emission.weight", "output.weight", rows)
        yield weight_pair("emission.bias", "output.bias", rows)

    def our_tied_names(self, shape: CheckpointSpec) -> Mapping[str, str]:
        return {}

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "TracesForCausalLM"


FAMILY = TracesFamily()
