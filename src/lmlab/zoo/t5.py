"""T5: spans of a text are dropped, and the decoder writes them one after another.

    loss = -log p(⟨X⟩ for inviting ⟨Y⟩ last ⟨Z⟩ | Thank you ⟨X⟩ me to your party ⟨Y⟩ week)

Every task is text to text: a corpus of pairs gives it sources, with words at their front that tell
the task. Attention knows positions by buckets of distances, one table for all layers; no biases,
RMS norms before the sublayers, unscaled scores, the output scaled and tied; `--recipe v1.1` has
gated units and an output of its own. log_prob is that of everything being one blank: poor after
training with short spans alone, which `whole` mends. `--set pairs=mask` hides spans of both texts
of a pair, as 002 tells it. Its token vectors begin large, and steps of a fixed length move them
little: `--recipe adafactor` takes the paper's optimiser, whose steps are in proportion.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmlab.core.card import Card
from lmlab.core.sentinels import Sentinels, SentinelWriting
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.unscaled import initialise_unscaled
from lmlab.zoo._t5 import T5Config, make_emission, make_objective
from lmlab.zoo._transformer import TRANSFORMER_RECIPES, make_encoder_decoder, make_tokens

CARD = Card(
    family="transformer",
    kind="exact",
    paper="Raffel et al. 2020, Exploring the Limits of Transfer Learning with a Unified "
    "Text-to-Text Transformer",
    source="002 §3.5, 004 §1.3.1.2",
    protocols=("LogProb", "Step", "Encode", "EncodeTokens", "Infill"),
    objectives=("denoising", "prefix-lm", "language-modelling"),
    conditional=True,
    oracle="transformers' T5 with the same weights: tests/parity/test_hf_t5.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(T5Config):
    """Settings of T5."""


SIZES = {
    "tiny": Config(
        width=16,
        layers=2,
        heads=2,
        length=64,
        dropout=0.0,
        attention_dropout=0.0,
        sentinels=8,
        rate=0.5,
        whole=0.5,
    ),
    "small": Config(),
    "base": Config(width=768, layers=12, heads=12, inner=3072, length=512),
}
RECIPES = {
    **TRANSFORMER_RECIPES,
    "v1.1": {"gated": True, "activation": "gelu-tanh", "tied": False},
    "adafactor": {"optimizer": "adafactor", "learning_rate": 0.03, "schedule": "cosine"},
}


def build(config: Config, vocabulary: Vocabulary) -> SentinelWriting:
    sentinels, written = Sentinels.of(
        vocabulary, config.sentinels, first=config.first_sentinel, step=config.sentinel_step
    )
    tokens = make_tokens(config, written)
    backbone = make_encoder_decoder(config, tokens)
    initialise_unscaled(backbone, tokens)
    system = SentinelWriting(
        vocabulary=vocabulary,
        backbone=backbone,
        emission=make_emission(config, written, tokens),
        objective=make_objective(config, vocabulary, sentinels, written),
    )
    # The decoder is given the first sentinel beside the text.
    system.window = config.length - 1
    return system
