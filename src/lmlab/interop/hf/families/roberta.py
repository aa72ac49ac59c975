"""Hugging Face RoBERTa (Liu et al. 2019): BERT's layers; positions offset by padding id + 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.interop.hf.bert_like import (
    ENCODER_FIXED,
    ENCODER_REQUIRED,
    ENCODER_SETTINGS,
    SEGMENTS,
    MaskedLMFamily,
    with_defaults,
)
from lmlab.interop.hf.family import CheckpointSpec
from lmlab.interop.hf.weight_mapping import ResizeRows, TensorMapping, read_whole_number


class Roberta(MaskedLMFamily):
    model_type = "roberta"
    systems = ("roberta",)
    settings = (*with_defaults(ENCODER_SETTINGS, {}), SEGMENTS)
    derived_settings = frozenset({"length"})
    # The head's activation is gelu whatever the layers use, and ours are the same.
    fixed = {**ENCODER_FIXED, "activation": "gelu", "pairs": "none"}
    required = {**ENCODER_REQUIRED, "hidden_act": "gelu"}
    prefix = "roberta."
    optional_weights = {r"^roberta\.pooler\.": "the pooler"}
    base = "roberta"
    dense, norm, bias = "lm_head.dense", "lm_head.layer_norm", "lm_head.bias"
    output_bias = bias
    decoder = "lm_head.decoder"

    def position_transform(self, shape: CheckpointSpec) -> TensorMapping:
        length, first = shape.settings["length"], first_position(shape.vocabulary)
        return ResizeRows(ours=length, theirs=length + first, first=first)

    def import_settings(
        self, config: Mapping[str, Any], names: frozenset[str], tokenizer: Tokenizer
    ) -> dict[str, Any]:
        first = first_position(tokenizer.vocabulary)
        return {"length": read_whole_number(config, "max_position_embeddings", 512) - first}

    def export_config(self, shape: CheckpointSpec) -> dict[str, Any]:
        first = first_position(shape.vocabulary)
        return {"max_position_embeddings": shape.settings["length"] + first}

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "RobertaForMaskedLM"


def first_position(vocabulary: Vocabulary) -> int:
    return vocabulary.pad + 1


FAMILY = Roberta()
