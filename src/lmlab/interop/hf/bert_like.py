"""Weight mapping shared by BERT-like encoders: config fields, layers and embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.interop.hf.family import CheckpointFamily, CheckpointSpec, layer_names
from lmlab.interop.hf.weight_mapping import (
    IDENTITY,
    ConfigField,
    TensorMapping,
    WeightPair,
    activation_field,
    concatenated_pairs,
    linear_pairs,
    weight_pair,
)

ENCODER_SETTINGS = (
    ConfigField("width", "hidden_size", 768),
    ConfigField("layers", "num_hidden_layers", 12),
    ConfigField("heads", "num_attention_heads", 12),
    ConfigField("ffn_width", "intermediate_size", 3072),
    ConfigField("dropout", "hidden_dropout_prob", 0.1),
    ConfigField("attention_dropout", "attention_probs_dropout_prob", 0.1),
    ConfigField("norm_epsilon", "layer_norm_eps", 1e-12),
    activation_field("hidden_act", "gelu"),
)
LENGTH = ConfigField("length", "max_position_embeddings", 512)
SEGMENTS = ConfigField("segments", "type_vocab_size", 2, write=lambda segments: segments or 1)
ENCODER_FIXED = {
    "pre_norm": False,
    "embedding_norm": True,
    "positions": "learned",
    "biases": True,
    "norm": "layer",
    "scaled_scores": True,
    "gated_ffn": False,
    "tied": True,
}
"""Settings common to all of them: post-norm, and layer norm after the embedding."""
ENCODER_REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


LAYER_PARTS = (
    "mixer.output",
    "mixer_connection.norm",
    "feed_forward.up_projection",
    "feed_forward.down_projection",
    "feed_forward_connection.norm",
)
"""Our names of an encoder layer's linear maps and norms, after the attention's projections."""


def with_defaults(
    settings: Iterable[ConfigField], defaults: Mapping[str, Any]
) -> list[ConfigField]:
    """Config fields without the activation, with other defaults for absent entries."""
    fields = [entry for entry in settings if entry.ours != "activation"]
    return [replace(entry, default=defaults.get(entry.theirs, entry.default)) for entry in fields]


MASKED_LM_OWN_SETTINGS = CheckpointFamily.own_settings | {
    "rate",
    "masking",
    "duplicates",
    "masking_seed",
    "full_sentences",
}
"""Settings that affect the training of a masked LM only."""
MASKED_LM_DROPPED_SETTINGS = CheckpointFamily.dropped_settings | {"objective"}
"""The training objective (masked LM or noise-contrastive) is not exported."""


class MaskedLMFamily(CheckpointFamily):
    """Masked language model: an encoder `base` with an MLM head of the names below."""

    base: ClassVar[str]
    dense: ClassVar[str]
    norm: ClassVar[str]
    bias: ClassVar[str]
    """Output bias over the tokens."""
    decoder: ClassVar[str]
    """Name of the tied output projection, a copy of the token embeddings."""
    fixed = ENCODER_FIXED
    required = ENCODER_REQUIRED
    own_settings = MASKED_LM_OWN_SETTINGS
    dropped_settings = MASKED_LM_DROPPED_SETTINGS

    def check_vocabulary(self, vocabulary: Vocabulary) -> None:
        super().check_vocabulary(vocabulary)
        if vocabulary.mask is None:
            raise UserError(
                f"a {self.model_type} checkpoint needs a mask token, and its tokenizer has "
                "neither <mask> nor [MASK]; use the tokenizer it was trained with."
            )

    def family_for_weights(self, names: Iterable[str]) -> CheckpointFamily:
        if not all(name.startswith(self.prefix) for name in self.canonical_names(names).values()):
            return self
        if self.encoder is None:
            raise UserError(
                f"this {self.model_type} checkpoint is an encoder without its language modelling "
                "head, which lmlab imports for bert only; use one saved with its head, or its "
                "folder as it is (lmlab index build DOCS --encoder FOLDER)."
            )
        return self.encoder

    def pairs(self, shape: CheckpointSpec) -> Iterator[WeightPair]:
        yield from embedding_pairs(
            shape,
            "backbone.embedding",
            f"{self.base}.embeddings",
            positions=self.position_transform(shape),
        )
        yield from self.layers(shape)
        yield from linear_pairs("emission.transform.dense", self.dense)
        yield from linear_pairs("emission.transform.norm", self.norm)
        yield weight_pair("emission.bias", self.bias, shape.token_row_transform)

    def layers(self, shape: CheckpointSpec) -> Iterator[WeightPair]:
        """Weights between embedding and head."""
        yield from encoder_layer_pairs(shape, "backbone.stack.blocks", f"{self.base}.encoder.layer")

    def position_transform(self, shape: CheckpointSpec) -> TensorMapping:
        """Mapping of the position embeddings."""
        return IDENTITY

    def filler_weights(self, shape: CheckpointSpec) -> Mapping[str, Tensor]:
        return segment_filler(shape, f"{self.base}.embeddings")

    def their_tied_names(self, shape: CheckpointSpec) -> Mapping[str, str]:
        return {
            f"{self.decoder}.weight": f"{self.base}.embeddings.word_embeddings.weight",
            f"{self.decoder}.bias": self.bias,
        }


def embedding_pairs(
    shape: CheckpointSpec, key: str, hf_key: str, *, positions: TensorMapping = IDENTITY
) -> Iterator[WeightPair]:
    """Token, position and segment embeddings, and the layer norm after their sum."""
    yield weight_pair(
        f"{key}.tokens.weight", f"{hf_key}.word_embeddings.weight", shape.token_row_transform
    )
    yield weight_pair(
        f"{key}.positions.table.weight", f"{hf_key}.position_embeddings.weight", positions
    )
    if shape.settings["segments"]:
        yield weight_pair(f"{key}.segments.weight", f"{hf_key}.token_type_embeddings.weight")
    yield from linear_pairs(f"{key}.norm", f"{hf_key}.LayerNorm")


def segment_filler(shape: CheckpointSpec, hf_key: str) -> dict[str, Tensor]:
    """A zero segment embedding, if ours has none but theirs requires one."""
    if shape.settings["segments"]:
        return {}
    width = shape.settings["embedding_width"] or shape.settings["width"]
    return {f"{hf_key}.token_type_embeddings.weight": torch.zeros(1, width)}


def pooler_pairs(pooler: str, classifier: str) -> Iterator[WeightPair]:
    """Sentence-pair head (next-sentence prediction): pooler of the first position, classifier."""
    yield from linear_pairs("objective.pairs.pool", pooler)
    yield from linear_pairs("objective.pairs.classify", classifier)


def has_pair_head(settings: Mapping[str, Any]) -> bool:
    return bool(settings["pairs"] != "none")


def encoder_layer_pairs(shape: CheckpointSpec, key: str, hf_key: str) -> Iterator[WeightPair]:
    """Every encoder layer: attention, feed-forward, and the norm after each."""
    for layer, hf_layer in layer_names(shape, key, hf_key):
        parts = [f"{hf_layer}.attention.self.{name}" for name in ("query", "key", "value")]
        yield from concatenated_pairs(f"{layer}.mixer.qkv_projection", parts)
        output = ("attention.output.dense", "attention.output.LayerNorm")
        feed_forward = ("intermediate.dense", "output.dense", "output.LayerNorm")
        yield from layer_part_pairs(layer, hf_layer, *output, *feed_forward)


def layer_part_pairs(key: str, hf_key: str, *hf_parts: str) -> Iterator[WeightPair]:
    """The linear maps and norms of one layer, by their names in the order of `LAYER_PARTS`."""
    for part, hf_part in zip(LAYER_PARTS, hf_parts, strict=True):
        yield from linear_pairs(f"{key}.{part}", f"{hf_key}.{hf_part}")
