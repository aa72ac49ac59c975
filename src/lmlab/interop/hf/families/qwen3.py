"""Hugging Face Qwen3 (Yang et al. 2025): Llama with norms of queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmlab.interop.hf.llama_like import LLAMA_SETTINGS, LlamaLike


class Qwen3(LlamaLike):
    model_type = "qwen3"
    required = {"use_sliding_window": False, "attention_bias": False}
    fixed = {**LLAMA_SETTINGS, "query_key_norm": True}
    key_value_heads = 32
    head_width = 128

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "Qwen3ForCausalLM"


FAMILY = Qwen3()
