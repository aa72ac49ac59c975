"""What BERT's descendants share: settings, layers and embeddings under nearly the same names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.interop.hf.config_fields import (
    Setting,
    activation,
)
from lmlab.interop.hf.family import Family, Shape, blocks
from lmlab.interop.hf.weight_mapping import (
    SAME,
    Pair,
    Way,
    joined,
    linear,
    pair,
)

ENCODER_SETTINGS = (
    Setting("width", "hidden_size", 768),
    Setting("layers", "num_hidden_layers", 12),
    Setting("heads", "num_attention_heads", 12),
    Setting("inner", "intermediate_size", 3072),
    Setting("dropout", "hidden_dropout_prob", 0.1),
    Setting("attention_dropout", "attention_probs_dropout_prob", 0.1),
    Setting("norm_epsilon", "layer_norm_eps", 1e-12),
    activation("hidden_act", "gelu"),
)
LENGTH = Setting("length", "max_position_embeddings", 512)
SEGMENTS = Setting("segments", "type_vocab_size", 2, write=lambda segments: segments or 1)
ENCODER_FIXED = {
    "pre_norm": False,
    "embedding_norm": True,
    "positions": "learned",
    "biases": True,
    "norm": "layer",
    "scaled_scores": True,
    "gated": False,
    "tied": True,
}
"""What every one of them has: norms after the sublayers and after the embedding."""
ENCODER_REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


def with_defaults(settings: Iterable[Setting], defaults: Mapping[str, Any]) -> list[Setting]:
    """Settings, but for the activation, with other values where config.json is silent."""
    kept = [each for each in settings if each.ours != "activation"]
    return [replace(each, default=defaults.get(each.theirs, each.default)) for each in kept]


MASKED_FREE = Family.free | {
    "rate",
    "masking",
    "duplicates",
    "masking_seed",
    "full_sentences",
}
"""What concerns the training of a masked model alone."""
MASKED_LEFT_BEHIND = Family.left_behind | {"objective"}
"""Trained by a contrast or not, a masked model comes back as one that is masked."""


class MaskedFamily(Family):
    """A masked language model: an encoder `base` with a prediction head of the names below."""

    base: ClassVar[str]
    dense: ClassVar[str]
    norm: ClassVar[str]
    bias: ClassVar[str]
    """Of the tokens."""
    decoder: ClassVar[str]
    """Where the shared vectors of the tokens stand a second time."""
    fixed = ENCODER_FIXED
    required = ENCODER_REQUIRED
    free = MASKED_FREE
    left_behind = MASKED_LEFT_BEHIND

    def needs(self, vocabulary: Vocabulary) -> None:
        super().needs(vocabulary)
        if vocabulary.mask is None:
            raise UserError(
                f"a {self.model_type} checkpoint hides tokens behind a mask symbol, and its "
                "tokeniser has neither <mask> nor [MASK]; take the tokeniser it was trained with."
            )

    def of_weights(self, names: Iterable[str]) -> Family:
        if not all(name.startswith(self.prefix) for name in self.spelled(names).values()):
            return self
        if self.encoder is None:
            raise UserError(
                f"this {self.model_type} checkpoint is an encoder without its language modelling "
                "head, and lmlab makes runs of such encoders of bert alone; take one saved with "
                "its head, or its folder as it is (lmlab index build DOCS --encoder FOLDER)."
            )
        return self.encoder

    def pairs(self, shape: Shape) -> Iterator[Pair]:
        yield from embedding_pairs(
            shape,
            "backbone.embedding",
            f"{self.base}.embeddings",
            positions=self.position_rows(shape),
        )
        yield from self.layers(shape)
        yield from linear("emission.transform.dense", self.dense)
        yield from linear("emission.transform.norm", self.norm)
        yield pair("emission.bias", self.bias, shape.token_rows)

    def layers(self, shape: Shape) -> Iterator[Pair]:
        """What stands between the embedding and the head."""
        yield from layer_pairs(shape, "backbone.stack.blocks", f"{self.base}.encoder.layer")

    def position_rows(self, shape: Shape) -> Way:
        """The way of the vectors of positions."""
        return SAME

    def fillers(self, shape: Shape) -> Mapping[str, Tensor]:
        return segment_filler(shape, f"{self.base}.embeddings")

    def their_copies(self, shape: Shape) -> Mapping[str, str]:
        return {
            f"{self.decoder}.weight": f"{self.base}.embeddings.word_embeddings.weight",
            f"{self.decoder}.bias": self.bias,
        }


def embedding_pairs(
    shape: Shape, ours: str, theirs: str, *, positions: Way = SAME
) -> Iterator[Pair]:
    """Vectors of tokens, positions and segments, and the norm after their sum."""
    yield pair(f"{ours}.tokens.weight", f"{theirs}.word_embeddings.weight", shape.token_rows)
    yield pair(f"{ours}.positions.table.weight", f"{theirs}.position_embeddings.weight", positions)
    if shape.settings["segments"]:
        yield pair(f"{ours}.segments.weight", f"{theirs}.token_type_embeddings.weight")
    yield from linear(f"{ours}.norm", f"{theirs}.LayerNorm")


def segment_filler(shape: Shape, theirs: str) -> dict[str, Tensor]:
    """One segment of zeros, where ours knows of none and theirs can't do without."""
    if shape.settings["segments"]:
        return {}
    width = shape.settings["embedding_width"] or shape.settings["width"]
    return {f"{theirs}.token_type_embeddings.weight": torch.zeros(1, width)}


def pooled_pairs(pooler: str, classifier: str) -> Iterator[Pair]:
    """The question about a pair of segments: what pools the first place, and what answers."""
    yield from linear("objective.pairs.pool", pooler)
    yield from linear("objective.pairs.classify", classifier)


def layer_pairs(shape: Shape, ours: str, theirs: str) -> Iterator[Pair]:
    """Every layer: attention, feed-forward, and the norm after each."""
    for here, there in blocks(shape, ours, theirs):
        parts = [f"{there}.attention.self.{name}" for name in ("query", "key", "value")]
        yield from joined(f"{here}.attention.project", parts)
        yield from linear(f"{here}.attention.output", f"{there}.attention.output.dense")
        yield from linear(f"{here}.around_attention.norm", f"{there}.attention.output.LayerNorm")
        yield from linear(f"{here}.feed_forward.widen", f"{there}.intermediate.dense")
        yield from linear(f"{here}.feed_forward.narrow", f"{there}.output.dense")
        yield from linear(f"{here}.around_feed_forward.norm", f"{there}.output.LayerNorm")
