"""ELECTRA: replaced token detection; a discriminator detects tokens replaced by a small masked LM.

    min_{G,D} Σ_{t masked} -log p_G(s_t | masked s) + λ Σ_t -log p_D(ŝ_t = s_t or not | ŝ),  ŝ ~ p_G

The discriminator learns from all positions, BERT from 15 %. The two networks share embeddings. The
discriminator encodes; log_prob and fill use the generator, which alone predicts tokens.
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
from lmlab.objectives.masking.token_masking import IndependentMasking, MaskReplacement
from lmlab.objectives.replaced_token_detection import ELECTRAObjective
from lmlab.zoo._transformer import make_softmax, make_token_embedding, make_transformer
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, BERTEncoderConfig, make_sizes

MISSING_NETWORK: dict[str, Literal["detector", "generator"] | None] = {
    "both": None,
    "detector": "generator",
    "generator": "detector",
}
"""The network without weights, by setting `networks`."""

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
        "sample": "it predicts single tokens given all the others, and can't sample a text",
    },
    oracle="transformers' ELECTRA, both networks: tests/parity/test_hf_electra.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(BERTEncoderConfig):
    """Settings of ELECTRA; Transformer settings apply to the discriminator."""

    rate: float = field(default=0.15, metadata={"at_least": 0, "below": 1})
    """Masking rate of the generator's input."""
    discriminator_weight: float = field(default=50.0, metadata={"at_least": 0})
    """λ, weight of the discriminator's loss."""
    detected: Literal["all", "masked"] = "all"
    """Tokens that the discriminator classifies: all, or those that the generator replaced."""
    networks: Literal["both", "detector", "generator"] = "both"
    """Networks that have weights (detector: the discriminator); Hub checkpoints may have one."""
    generator_width: int = field(default=0, metadata={"at_least": 0})
    """Hidden size of the generator; 0 for a quarter of the discriminator's."""
    generator_layers: int = field(default=0, metadata={"at_least": 0})
    """Layers of the generator; 0 for as many as the discriminator's."""
    generator_heads: int = field(default=0, metadata={"at_least": 0})
    """Heads of the generator; 0 for a quarter of the discriminator's."""
    generator_ffn_width: int = field(default=0, metadata={"at_least": 0})
    """FFN hidden size of the generator; 0 for four times its width."""

    @property
    def generator(self) -> Config:
        """Settings of the generator: narrower, same embedding, no disabled layers or heads."""
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


SIZES = make_sizes(
    Config,
    # In a short test λ = 50 would drown the generator's loss.
    tiny={
        "width": 32,
        "embedding_width": 16,
        "generator_width": 16,
        "generator_layers": 1,
        "generator_heads": 2,
        "discriminator_weight": 1.0,
    },
    base={"generator_width": 256, "generator_heads": 4},
)
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> ReplacedTokenDetector:
    tokens = make_token_embedding(config, vocabulary)
    detector = make_transformer(config, tokens)
    generator = make_generator(config, vocabulary, tokens, detector)
    head = Discriminator(config.width, activation=config.activation)
    init_transformer_weights(head, config.width)
    return ReplacedTokenDetector(
        vocabulary=vocabulary,
        backbone=detector,
        emission=head,
        objective=ELECTRAObjective(
            generator, weight=config.discriminator_weight, detects_all=config.detected == "all"
        ),
        missing_network=MISSING_NETWORK[config.networks],
    )


def make_generator(
    config: Config, vocabulary: Vocabulary, tokens: nn.Embedding, detector: Transformer
) -> MaskedLM:
    """Generator (small masked LM), sharing all embeddings and their norm with the discriminator."""
    settings, masking = config.generator, IndependentMasking(config.rate)
    # As in the paper all chosen tokens become <mask>; the discriminator never sees <mask>.
    replacement = MaskReplacement(vocabulary=vocabulary, mask=1.0, random=0.0)
    backbone = make_transformer(settings, tokens)
    backbone.embedding.share(detector.embedding)
    # Initialise embeddings for the discriminator's width; the generator's would scale them up.
    init_transformer_weights(tokens, config.width)
    return MaskedLM(
        vocabulary=vocabulary,
        backbone=backbone,
        emission=make_softmax(settings, vocabulary, tokens, bias=True, head=True),
        objective=BERTObjective(vocabulary, masking, replacement),
    )
