"""Hugging Face BERT: masked LM with optional NSP head; BERT sentence encoders (imported as DPR).

Devlin et al. 2019. Systems with other masking strategies have the same weights.
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
    has_pair_head,
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

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "BertModel"

    def our_tied_names(self, shape: CheckpointSpec) -> Mapping[str, str]:
        names = [pair.ours for pair in self.pairs(shape)]
        return {name.replace("questions", "documents", 1): name for name in names}

    def read_checkpoint_parts(
        self, folder: Path, config: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
        """Drop positions beyond the maximum length given in the folder's files."""
        pooling, weights = read_sentence_encoder_config(folder), dict(read_weights(folder))
        max_length = LENGTH.read_from(config)
        if pooling.window is not None and pooling.window < max_length:
            config = {**config, LENGTH.theirs: pooling.window, POSITIONS_KEY: max_length}
            for name in [key for key in weights if key.endswith(POSITION_TABLE)]:
                weights[name] = weights[name][: pooling.window]
        return {**config, SENTENCE_ENCODER_KEY: asdict(pooling)}, weights

    def import_settings(
        self, config: Mapping[str, Any], names: frozenset[str], tokenizer: Tokenizer
    ) -> dict[str, Any]:
        pooling = SentenceEncoderConfig(**config[SENTENCE_ENCODER_KEY])
        poolings = [POOLING.get(name) for name in pooling.poolings]
        if poolings not in (["first"], ["mean"]):
            raise UserError(
                f"the checkpoint pools hidden states by {' and '.join(pooling.poolings)}, but a "
                f"run supports one of {' or '.join(POOLING)}; use its folder as it is (lmlab index "
                "build DOCS --encoder FOLDER)."
            )
        length = NORMALIZED_SCALE if pooling.normalized else 0.0
        return {"pooling": poolings[0], "vector_norm": length}

    def import_notes(self, config: Mapping[str, Any]) -> list[str]:
        pooling, notes = SentenceEncoderConfig(**config[SENTENCE_ENCODER_KEY]), []
        if POSITIONS_KEY in config:
            notes.append(
                f"texts are cut after {pooling.window} tokens, as the checkpoint's own files "
                f"specify; it has positions for {config[POSITIONS_KEY]}."
            )
        if pooling.lower:
            notes.append("the checkpoint expects lower-cased texts; lower-case them.")
        for kind, prompt in (
            ("query", pooling.query_prompt),
            ("document", pooling.document_prompt),
        ):
            if prompt:
                notes.append(f"the checkpoint expects {prompt!r} before a {kind}; add it.")
        return notes


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
        if has_pair_head(shape.settings):
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
        return "BertForPreTraining" if has_pair_head(settings) else "BertForMaskedLM"


FAMILY = Bert()
