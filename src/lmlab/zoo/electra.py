"""ELECTRA: a small masked model replaces tokens, and a detector says of each whether it was.

    min_{G,D} Σ_{t masked} -log p_G(s_t | masked s) + λ Σ_t -log p_D(ŝ_t = s_t or not | ŝ),  ŝ ~ p_G

Every place teaches the detector, where BERT learns from 15 %. The two share their embeddings. The
detector encodes; log_prob and fill are the generator's, since it alone knows of words.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from torch import nn

from lmlab.backbones.transformer import Transformer
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.discriminator import Discriminator
from lmlab.layers.weight_init import init_transformer_weights
from lmlab.models.masked_lm import MaskedLM
from lmlab.models.token_detection import ReplacedTokenDetector
from lmlab.objectives.masked_language_modelling import BERTObjective
from lmlab.objectives.masking.token_masking import (
    IndependentMasking,
    MaskReplacement,
)
from lmlab.objectives.replaced_token_detection import ELECTRAObjective
from lmlab.zoo._transformer import (
    TRANSFORMER_RECIPES,
    TransformerConfig,
    make_softmax,
    make_token_embedding,
    make_transformer,
)


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
    discriminator_weight: float = field(default=50.0, metadata={"at_least": 0})
    """What the detector's mean loss is multiplied by before the generator's is added."""
    networks: Literal["both", "detector", "generator"] = "both"
    """Which of its two networks have weights; a checkpoint of the Hub may have one alone."""
    generator_width: int = field(default=0, metadata={"at_least": 0})
    """Numbers in a hidden state of the generator; 0 for a quarter of the detector's."""
    generator_layers: int = field(default=0, metadata={"at_least": 0})
    """Blocks of the generator; 0 for as many as the detector's."""
    generator_heads: int = field(default=0, metadata={"at_least": 0})
    """Heads of the generator; 0 for a quarter of the detector's."""
    generator_ffn_width: int = field(default=0, metadata={"at_least": 0})
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
            ffn_width=self.generator_ffn_width,
            embedding_width=self.embedding_width or self.width,
            disabled_layers=(),
            disabled_heads=(),
        )


def make_generator(
    config: ElectraConfig, vocabulary: Vocabulary, tokens: nn.Embedding, detector: Transformer
) -> MaskedLM:
    """The small masked model; positions, segments and their norm are the detector's as well."""
    small, choice = config.generator, IndependentMasking(config.rate)
    # The paper hides all chosen tokens behind <mask>: the detector never sees that symbol.
    replacement = MaskReplacement(vocabulary=vocabulary, mask=1.0, random=0.0)
    backbone, shared = make_transformer(small, tokens), detector.embedding
    backbone.embedding.positions = shared.positions
    backbone.embedding.segments = shared.segments
    backbone.embedding.norm = shared.norm
    # The tokens' first vectors are the detector's: the generator's width would make them longer.
    init_transformer_weights(tokens, config.width)
    return MaskedLM(
        vocabulary=vocabulary,
        backbone=backbone,
        emission=make_softmax(small, vocabulary, tokens, bias=True, head=True),
        objective=BERTObjective(vocabulary, choice, replacement),
    )


MISSING_NETWORK: dict[str, Literal["detector", "generator"] | None] = {
    "both": None,
    "detector": "generator",
    "generator": "detector",
}
"""By the networks that have weights, the one that has none."""


def make_discriminator_head(config: ElectraConfig) -> Discriminator:
    """The detector's head, with its first weights."""
    detection = Discriminator(config.width, activation=config.activation)
    init_transformer_weights(detection, config.width)
    return detection


CARD = Card(
    family="transformer",
    kind="pseudo",
    paper="Clark et al. 2020, ELECTRA: Pre-training Text Encoders as Discriminators Rather Than "
    "Generators",
    source="004 §1.3.3",
    protocols=("LogProb", "Fill", "Detect", "Encode", "EncodeTokens"),
    objectives=("replaced-tokens",),
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it gives single tokens given all the others, and no way to draw a text",
    },
    oracle="transformers' ELECTRA, both networks: tests/parity/test_hf_electra.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(ElectraConfig):
    """Settings of ELECTRA; those of a Transformer are the detector's."""


SIZES = {
    # In the few steps of a test fifty times the detector's loss would drown the generator's.
    "tiny": Config(
        width=32,
        embedding_width=16,
        layers=2,
        heads=2,
        length=64,
        dropout=0.0,
        attention_dropout=0.0,
        generator_width=16,
        generator_layers=1,
        generator_heads=2,
        discriminator_weight=1.0,
    ),
    "small": Config(),
    "base": Config(
        width=768, layers=12, heads=12, length=512, generator_width=256, generator_heads=4
    ),
}
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> ReplacedTokenDetector:
    tokens = make_token_embedding(config, vocabulary)
    detector = make_transformer(config, tokens)
    generator = make_generator(config, vocabulary, tokens, detector)
    system = ReplacedTokenDetector(
        vocabulary=vocabulary,
        backbone=detector,
        emission=make_discriminator_head(config),
        objective=ELECTRAObjective(generator, weight=config.discriminator_weight),
    )
    system.window = config.length - 1
    system.missing_network = MISSING_NETWORK[config.networks]
    return system
