"""BERT (Devlin et al. 2019), with the head that answers for pairs where there is one.

Systems that hide other tokens than BERT does have the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lmlab.core.errors import UserError
from lmlab.data.tokenizers import Tokenizer
from lmlab.interop.hf.bert_encoder import BertEncoder
from lmlab.interop.hf.bert_like import (
    ENCODER_SETTINGS,
    LENGTH,
    MASKED_FREE,
    SEGMENTS,
    MaskedFamily,
    pooled_pairs,
)
from lmlab.interop.hf.family import Shape
from lmlab.interop.hf.tables import Pair

CLASSIFIER = "cls.seq_relationship"


class Bert(MaskedFamily):
    model_type = "bert"
    systems = ("bert", "bert-wwm", "ernie")
    settings = (*ENCODER_SETTINGS, LENGTH, SEGMENTS)
    told_more = frozenset({"pairs"})
    free = MASKED_FREE | {"mentions"}
    prefix = "bert."
    inputs = ("input_ids", "token_type_ids", "attention_mask")
    optional = {r"^bert\.pooler\.": "the pooler"}
    encoder = BertEncoder()
    base = "bert"
    dense = "cls.predictions.transform.dense"
    norm = "cls.predictions.transform.LayerNorm"
    bias, decoder = "cls.predictions.bias", "cls.predictions.decoder"
    output_bias = bias

    def pairs(self, shape: Shape) -> Iterator[Pair]:
        yield from super().pairs(shape)
        if _asks(shape.settings):
            yield from pooled_pairs("bert.pooler.dense", CLASSIFIER)

    def read_more(
        self, config: Mapping[str, Any], names: frozenset[str], tokenizer: Tokenizer
    ) -> dict[str, Any]:
        return {"pairs": "next" if f"{CLASSIFIER}.weight" in names else "none"}

    def tell_more(self, shape: Shape) -> dict[str, Any]:
        if shape.settings["pairs"] == "order":
            raise UserError(
                "the run was trained to tell the order of segments, and a bert checkpoint's head "
                "tells whether the second follows; it can't be exported."
            )
        return {}

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "BertForPreTraining" if _asks(settings) else "BertForMaskedLM"


def _asks(settings: Mapping[str, Any]) -> bool:
    return settings["pairs"] != "none"


FAMILY = Bert()
