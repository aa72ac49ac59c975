"""Hugging Face Llama (Touvron et al. 2023) and models of its format, such as SmolLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmlab.interop.hf.llama_like import LlamaLike


class Llama(LlamaLike):
    model_type = "llama"
    required = {"attention_bias": False, "mlp_bias": False}

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "LlamaForCausalLM"


FAMILY = Llama()
