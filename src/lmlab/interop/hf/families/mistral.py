"""Hugging Face Mistral (Jiang et al. 2023): Llama with a sliding window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmlab.core.errors import UserError
from lmlab.data.tokenizers import Tokenizer
from lmlab.interop.hf.family import CheckpointSpec
from lmlab.interop.hf.llama_like import LONGEST, LlamaLike
from lmlab.interop.hf.weight_mapping import read_whole_number
from lmlab.layers.sparse_pattern import DENSE, SparsePattern

WINDOW = 4096
"""Sliding window if config.json has none; null is attention to all positions."""


class Mistral(LlamaLike):
    model_type = "mistral"
    derived_settings = LlamaLike.derived_settings | {"attention"}
    key_value_heads = 8

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "MistralForCausalLM"

    def import_settings(
        self, config: Mapping[str, Any], names: frozenset[str], tokenizer: Tokenizer
    ) -> dict[str, Any]:
        attention = DENSE
        if config.get("sliding_window", WINDOW) is not None:
            window = read_whole_number(config, "sliding_window", WINDOW)
            longest = read_whole_number(config, "max_position_embeddings", LONGEST)
            attention = DENSE if window >= longest else f"window:{window}"
        return {**super().import_settings(config, names, tokenizer), "attention": attention}

    def export_config(self, shape: CheckpointSpec) -> dict[str, Any]:
        pattern = SparsePattern.parse(shape.settings["attention"])
        if pattern is not None and (pattern.stride or pattern.global_tokens):
            raise UserError(
                f"the run has attention={shape.settings['attention']}, and a mistral checkpoint "
                "can only express a sliding window (window:N); it can't be exported."
            )
        window = None if pattern is None else pattern.window
        return {**super().export_config(shape), "sliding_window": window}


FAMILY = Mistral()
