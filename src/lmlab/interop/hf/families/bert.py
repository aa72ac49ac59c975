"""BERT (Devlin et al. 2019), with the next-sentence prediction head if there is one.

Systems with other masking strategies have the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.data.tokenizers import Tokenizer
from lmlab.interop.hf.bert_like import (
    ENCODER_FIXED,
    ENCODER_REQUIRED,
    ENCODER_SETTINGS,
    LENGTH,
    MASKED_LM_OWN_SETTINGS,
    SEGMENTS,
    MaskedLMFamily,
    embedding_pairs,
    encoder_layer_pairs,
    pooler_pairs,
)
from lmlab.interop.hf.checkpoint_files import read_weights
from lmlab.interop.hf.family import CheckpointFamily, CheckpointSpec
from lmlab.interop.hf.sentence_encoders import SentenceEncoderConfig, read_sentence_encoder_config
from lmlab.interop.hf.weight_mapping import WeightPair

SENTENCE_ENCODER_KEY = "sentences"
"""Config key under which we store the sentence-transformers files of the folder."""
POSITIONS_KEY = "positions_of_the_checkpoint"
"""Config key for the checkpoint's number of positions, if its files use fewer."""
POSITION_TABLE = "embeddings.position_embeddings.weight"
POOLING = {"cls": "first", "mean": "mean"}
"""Their pooling names and ours."""
NORMALIZED_SCALE = 20**0.5
"""Unit vectors have scores between -1 and 1, too flat for a softmax. sentence-transformers trains
such encoders on cosines times 20, which is this scale squared.
"""


class BertEncoder(CheckpointFamily):
    """Shared BERT encoder of questions and documents, without a projection."""

    model_type = "bert"
    systems = ("dpr",)
    predicts_tokens = False
    settings = (*ENCODER_SETTINGS, LENGTH, SEGMENTS)
    fixed = {**ENCODER_FIXED, "shared_encoders": "all", "vector_width": 0}
    # There is no head whose weights could be tied.
    required = {k: v for k, v in ENCODER_REQUIRED.items() if k != "tie_word_embeddings"}
    prefix = "bert."
    optional_weights = {r"^bert\.pooler\.": "the pooler"}
    data_buffers = frozenset({"others", "reference_lengths"})
    missing_weights_hint = "fetch or copy it again"

    def pairs(self, shape: CheckpointSpec) -> Iterator[WeightPair]:
        yield from embedding_pairs(shape, "questions.backbone.embedding", "bert.embeddings")
        yield from encoder_layer_pairs(
            shape, "questions.backbone.stack.blocks", "bert.encoder.layer"
        )

    def our_tied_names(self, shape: CheckpointSpec) -> Mapping[str, str]:
        names = [each.ours for each in self.pairs(shape)]
        return {name.replace("questions", "documents", 1): name for name in names}

    def read_checkpoint_parts(
        self, folder: Path, config: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
        """Drop positions beyond the maximum length given in the folder's files."""
        told, weights = read_sentence_encoder_config(folder), dict(read_weights(folder))
        longest = LENGTH.read_from(config)
        if told.window is not None and told.window < longest:
            config = {**config, LENGTH.theirs: told.window, POSITIONS_KEY: longest}
            for name in [each for each in weights if each.endswith(POSITION_TABLE)]:
                weights[name] = weights[name][: told.window]
        return {**config, SENTENCE_ENCODER_KEY: asdict(told)}, weights

    def import_settings(
        self, config: Mapping[str, Any], names: frozenset[str], tokenizer: Tokenizer
    ) -> dict[str, Any]:
        told = SentenceEncoderConfig(**config[SENTENCE_ENCODER_KEY])
        ours = [POOLING.get(name) for name in told.poolings]
        if ours not in (["first"], ["mean"]):
            raise UserError(
                f"the checkpoint pools hidden states by {' and '.join(told.poolings)}, but a run "
                f"supports one of {' or '.join(POOLING)}; use its folder as it is (lmlab index "
                "build DOCS --encoder FOLDER)."
            )
        length = NORMALIZED_SCALE if told.normalized else 0.0
        return {"pooling": ours[0], "vector_norm": length}

    def import_notes(self, config: Mapping[str, Any]) -> list[str]:
        told, found = SentenceEncoderConfig(**config[SENTENCE_ENCODER_KEY]), []
        if POSITIONS_KEY in config:
            found.append(
                f"texts are cut after {told.window} tokens, as the checkpoint's own files "
                f"specify; it has positions for {config[POSITIONS_KEY]}."
            )
        if told.lower:
            found.append("the checkpoint expects lower-cased texts; lower-case them.")
        for what, prompt in (("query", told.query_prompt), ("document", told.document_prompt)):
            if prompt:
                found.append(f"the checkpoint expects {prompt!r} before a {what}; add it.")
        return found


CLASSIFIER = "cls.seq_relationship"


class Bert(MaskedLMFamily):
    model_type = "bert"
    systems = ("bert", "bert-wwm", "ernie")
    settings = (*ENCODER_SETTINGS, LENGTH, SEGMENTS)
    derived_settings = frozenset({"pairs"})
    own_settings = MASKED_LM_OWN_SETTINGS | {"mentions"}
    prefix = "bert."
    inputs = ("input_ids", "token_type_ids", "attention_mask")
    optional_weights = {r"^bert\.pooler\.": "the pooler"}
    encoder = BertEncoder()
    base = "bert"
    dense = "cls.predictions.transform.dense"
    norm = "cls.predictions.transform.LayerNorm"
    bias, decoder = "cls.predictions.bias", "cls.predictions.decoder"
    output_bias = bias

    def pairs(self, shape: CheckpointSpec) -> Iterator[WeightPair]:
        yield from super().pairs(shape)
        if _asks(shape.settings):
            yield from pooler_pairs("bert.pooler.dense", CLASSIFIER)

    def import_settings(
        self, config: Mapping[str, Any], names: frozenset[str], tokenizer: Tokenizer
    ) -> dict[str, Any]:
        return {"pairs": "next" if f"{CLASSIFIER}.weight" in names else "none"}

    def export_config(self, shape: CheckpointSpec) -> dict[str, Any]:
        if shape.settings["pairs"] == "order":
            raise UserError(
                "the run was trained on sentence-order prediction, but a bert checkpoint's "
                "head predicts the next sentence; it can't be exported."
            )
        return {}

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "BertForPreTraining" if _asks(settings) else "BertForMaskedLM"


def _asks(settings: Mapping[str, Any]) -> bool:
    return settings["pairs"] != "none"


FAMILY = Bert()
