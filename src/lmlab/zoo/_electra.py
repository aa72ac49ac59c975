"""What ELECTRA is put together from: its settings, its generator, the embedding that both share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from torch import nn

from lmlab.backbones.transformer import Transformer
from lmlab.core.filling import Filling
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.detection import Detection
from lmlab.layers.initialising import initialise
from lmlab.objectives.masked import MaskedTokens
from lmlab.objectives.masking import EachToken, Replacement
from lmlab.zoo._transformer import TransformerConfig, make_softmax, make_transformer


@dataclass(frozen=True, kw_only=True)
class ElectraConfig(TransformerConfig):
    """Settings of ELECTRA; those of a Transformer are the detector's."""

    pre_norm: bool = False
    """Norm before each sublayer, and one at the end; else after each."""
    embedding_norm: bool = True
    """Whether a norm stands after the embedding."""
    norm_epsilon: float = field(default=1e-12, metadata={"at_least": 0})
    """What norms add to the variance."""
    rate: float = field(default=0.15, metadata={"at_least": 0, "below": 1})
    """Share of the tokens that are hidden from the generator."""
    detection_weight: float = field(default=50.0, metadata={"at_least": 0})
    """What the detector's mean loss is multiplied by before the generator's is added."""
    networks: Literal["both", "detector", "generator"] = "both"
    """Which of its two networks have weights; a checkpoint of the Hub may have one alone."""
    generator_width: int = field(default=0, metadata={"at_least": 0})
    """Numbers in a hidden state of the generator; 0 for a quarter of the detector's."""
    generator_layers: int = field(default=0, metadata={"at_least": 0})
    """Blocks of the generator; 0 for as many as the detector's."""
    generator_heads: int = field(default=0, metadata={"at_least": 0})
    """Heads of the generator; 0 for a quarter of the detector's."""
    generator_inner: int = field(default=0, metadata={"at_least": 0})
    """Units of the generator's feed-forward layers; 0 for four times its width."""

    @property
    def generator(self) -> ElectraConfig:
        """The settings of the generator: narrower layers over the same embedding, none silent."""
        return replace(
            self,
            width=self.generator_width or max(1, self.width // 4),
            layers=self.generator_layers or self.layers,
            heads=self.generator_heads or max(1, self.heads // 4),
            head_width=0,
            inner=self.generator_inner,
            embedding_width=self.embedding_width or self.width,
            silent_layers=(),
            silent_heads=(),
        )


def make_generator(
    config: ElectraConfig, vocabulary: Vocabulary, tokens: nn.Embedding, detector: Transformer
) -> Filling:
    """The small masked model; positions, segments and their norm are the detector's as well."""
    small, choice = config.generator, EachToken(config.rate)
    # The paper hides all chosen tokens behind <mask>: the detector never sees that symbol.
    replacement = Replacement(vocabulary=vocabulary, mask=1.0, random=0.0)
    backbone, shared = make_transformer(small, tokens), detector.embedding
    backbone.embedding.positions = shared.positions
    backbone.embedding.segments = shared.segments
    backbone.embedding.norm = shared.norm
    # The tokens' first vectors are the detector's: the generator's width would make them longer.
    initialise(tokens, config.width)
    return Filling(
        vocabulary=vocabulary,
        backbone=backbone,
        emission=make_softmax(small, vocabulary, tokens, bias=True, head=True),
        objective=MaskedTokens(vocabulary, choice, replacement),
    )


LACKING: dict[str, Literal["detector", "generator"] | None] = {
    "both": None,
    "detector": "generator",
    "generator": "detector",
}
"""By the networks that have weights, the one that has none."""


def make_detection(config: ElectraConfig) -> Detection:
    """The detector's head, with its first weights."""
    detection = Detection(config.width, activation=config.activation)
    initialise(detection, config.width)
    return detection
