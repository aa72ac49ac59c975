"""ELECTRA: a small masked model replaces tokens, and a detector says of each whether it was.

    min_{G,D} Σ_{t masked} -log p_G(s_t | masked s) + λ Σ_t -log p_D(ŝ_t = s_t or not | ŝ),  ŝ ~ p_G

Every place teaches the detector, where BERT learns from 15 %. The two share their embeddings. The
detector encodes; log_prob and fill are the generator's, since it alone knows of words.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmlab.core.card import Card
from lmlab.core.detecting import Detecting
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.replaced_tokens import ReplacedTokens
from lmlab.zoo._electra import LACKING, ElectraConfig, make_detection, make_generator
from lmlab.zoo._transformer import TRANSFORMER_RECIPES, make_tokens, make_transformer

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
        detection_weight=1.0,
    ),
    "small": Config(),
    "base": Config(
        width=768, layers=12, heads=12, length=512, generator_width=256, generator_heads=4
    ),
}
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> Detecting:
    tokens = make_tokens(config, vocabulary)
    detector = make_transformer(config, tokens)
    generator = make_generator(config, vocabulary, tokens, detector)
    system = Detecting(
        vocabulary=vocabulary,
        backbone=detector,
        emission=make_detection(config),
        objective=ReplacedTokens(generator, weight=config.detection_weight),
    )
    system.window = config.length - 1
    system.lacks = LACKING[config.networks]
    return system
