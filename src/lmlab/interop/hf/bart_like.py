"""Weight mapping shared by BART and PEGASUS: encoder-decoders with one shared embedding."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.interop.hf.family import CheckpointFamily, CheckpointSpec
from lmlab.interop.hf.weight_mapping import (
    ConfigField,
    Unsqueeze,
    WeightPair,
    activation_field,
    concatenated_pairs,
    linear_pairs,
    read_whole_number,
    weight_pair,
)

SHARED_FIELDS = ("attention_heads", "ffn_dim")
"""Config fields that encoder and decoder each have, and that must be equal in lmlab."""
LOGIT_BIAS = "final_logits_bias"
SIDES = ("encoder", "decoder")


class DenoisingSeq2SeqFamily(CheckpointFamily):
    """Denoising encoder-decoder: restores a corrupted source."""

    settings = (
        ConfigField("width", "d_model", 1024),
        ConfigField("layers", "encoder_layers", 12),
        ConfigField("heads", "encoder_attention_heads", 16),
        ConfigField("ffn_width", "encoder_ffn_dim", 4096),
        ConfigField("length", "max_position_embeddings", 1024),
        ConfigField("dropout", "dropout", 0.1),
        ConfigField("attention_dropout", "attention_dropout", 0.0),
        ConfigField("scaled_embeddings", "scale_embedding", False),
        activation_field("activation_function", "gelu"),
    )
    derived_settings = frozenset({"decoder_layers", "decoder_prefix"})
    required = {"tie_word_embeddings": True, "is_encoder_decoder": True}
    # Whether a source starts with the start token depends on the family; config.json doesn't say.
    own_settings = CheckpointFamily.own_settings | {
        "rate",
        "full_mask_rate",
        "mask",
        "source_has_start",
    }
    # Version numbers stored by early releases.
    ignored_weights: ClassVar[tuple[str, ...]] = (r"\.version$",)
    prefix = "model."
    output_bias = LOGIT_BIAS
    heads = ("lm_head.", LOGIT_BIAS)
    decoder_starts_with_bos: ClassVar[bool]
    """Whether source and target start with the start token."""

    def pairs(self, shape: CheckpointSpec) -> Iterator[WeightPair]:
        tokens = "backbone.encoder.embedding.tokens.weight"
        yield weight_pair(tokens, "model.shared.weight", shape.token_row_transform)
        yield weight_pair("emission.bias", LOGIT_BIAS, Unsqueeze(shape.token_row_transform))
        for side in SIDES:
            yield from self.side_pairs(shape, f"backbone.{side}", f"model.{side}")
        layers = {"encoder": shape.layers, "decoder": decoder_layers(shape.settings)}
        for side, count in layers.items():
            for layer in range(count):
                key, hf_key = f"backbone.{side}.stack.blocks.{layer}", f"model.{side}.layers"
                yield from seq2seq_layer_pairs(
                    key, f"{hf_key}.{layer}", cross_attention=side == "decoder"
                )

    @abstractmethod
    def side_pairs(self, shape: CheckpointSpec, key: str, hf_key: str) -> Iterator[WeightPair]:
        """Weights before and after the layers of the encoder or decoder."""

    def our_tied_names(self, shape: CheckpointSpec) -> Mapping[str, str]:
        tokens = "backbone.encoder.embedding.tokens.weight"
        return {"emission.weight": tokens, "backbone.decoder.embedding.tokens.weight": tokens}

    def their_tied_names(self, shape: CheckpointSpec) -> Mapping[str, str]:
        copies = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
        return dict.fromkeys((*copies, "lm_head.weight"), "model.shared.weight")

    def defaults(self, shape: CheckpointSpec) -> Mapping[str, Tensor]:
        return {LOGIT_BIAS: torch.zeros(1, shape.rows)}

    def import_settings(
        self, config: Mapping[str, Any], names: frozenset[str], tokenizer: Tokenizer
    ) -> dict[str, Any]:
        for name in SHARED_FIELDS:
            first, second = (config.get(f"{side}_{name}") for side in SIDES)
            if first != second:
                raise UserError(
                    f"the checkpoint's encoder and decoder must have the same {name}, got {first} "
                    f"and {second}."
                )
        vocabulary = tokenizer.vocabulary
        start_id = read_whole_number(config, "decoder_start_token_id", vocabulary.bos)
        return {
            "decoder_layers": read_whole_number(config, "decoder_layers", 12),
            "decoder_prefix": self._decoder_prefix(start_id, vocabulary),
            "source_has_start": self.decoder_starts_with_bos,
        }

    def _decoder_prefix(self, start_id: int, vocabulary: Vocabulary) -> tuple[int, ...]:
        """Special tokens before the target in the decoder input, if it starts with this id."""
        bos = vocabulary.start if self.decoder_starts_with_bos else None
        return (start_id,) if bos in (None, start_id) else (start_id, bos)

    def export_config(self, shape: CheckpointSpec) -> dict[str, Any]:
        settings = shape.settings
        prefix = tuple(settings["decoder_prefix"]) or (shape.vocabulary.bos,)
        start_id, *forced = prefix
        if prefix != self._decoder_prefix(start_id, shape.vocabulary):
            raise UserError(
                f"the run's decoder starts with the ids {', '.join(map(str, prefix))}, which a "
                f"{self.model_type} checkpoint can't express; it can't be exported."
            )
        return {
            "decoder_layers": decoder_layers(settings),
            "decoder_attention_heads": settings["heads"],
            "decoder_ffn_dim": settings["ffn_width"],
            "decoder_start_token_id": start_id,
            "forced_bos_token_id": forced[0] if forced else None,
            "forced_eos_token_id": shape.vocabulary.end,
        }

    def input_template(self, settings: Mapping[str, Any]) -> str:
        return "start text end" if settings["source_has_start"] else "text end"


def decoder_layers(settings: Mapping[str, Any]) -> int:
    return int(settings["decoder_layers"] or settings["layers"])


def seq2seq_layer_pairs(key: str, hf_key: str, *, cross_attention: bool) -> Iterator[WeightPair]:
    """Weight pairs of one layer; a decoder layer also has cross-attention."""
    yield from attention_pairs(f"{key}.mixer", f"{hf_key}.self_attn")
    yield from linear_pairs(f"{key}.mixer_connection.norm", f"{hf_key}.self_attn_layer_norm")
    if cross_attention:
        yield from attention_pairs(f"{key}.cross_attention", f"{hf_key}.encoder_attn")
        yield from linear_pairs(
            f"{key}.cross_attention_connection.norm", f"{hf_key}.encoder_attn_layer_norm"
        )
    yield from linear_pairs(f"{key}.feed_forward.up_projection", f"{hf_key}.fc1")
    yield from linear_pairs(f"{key}.feed_forward.down_projection", f"{hf_key}.fc2")
    yield from linear_pairs(f"{key}.feed_forward_connection.norm", f"{hf_key}.final_layer_norm")


def attention_pairs(key: str, hf_key: str) -> Iterator[WeightPair]:
    yield from concatenated_pairs(
        f"{key}.qkv_projection", [f"{hf_key}.{name}_proj" for name in ("q", "k", "v")]
    )
    yield from linear_pairs(f"{key}.output", f"{hf_key}.out_proj")
