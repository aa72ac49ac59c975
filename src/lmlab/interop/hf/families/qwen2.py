"""Hugging Face Qwen2 (Yang et al. 2024): Llama with biases of queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmlab.interop.hf.llama_like import LLAMA_SETTINGS, LlamaLike


class Qwen2(LlamaLike):
    model_type = "qwen2"
    required = {"use_sliding_window": False}
    fixed = {**LLAMA_SETTINGS, "qkv_biases": True}
    key_value_heads = 32

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "Qwen2ForCausalLM"


FAMILY = Qwen2()
