"""Linear sentence autoencoder: one linear layer from all positions to one vector, one back.

    z = C [e(s_1), …, e(s_n)] + c;  [h_1, …, h_n] = D z + d;  p(s_t | h_t)

Positions after the end of a sentence are zeros. Training with `latent_noise` discourages learning
the mere identity.
"""

from __future__ import annotations

from torch import nn

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.latent_variable import Autoencoder
from lmlab.zoo import _sentence_autoencoders as parts

CARD = Card(
    family="autoencoder",
    kind="reconstruction",
    paper="Baldi and Hornik 1989, Neural Networks and Principal Component Analysis; Vincent et al. "
    "2008 (denoising)",
    source="003 DLM55",
    aliases=("DLM55",),
    protocols=("LogProb", "Encode", "Given"),
    objectives=("reconstruction",),
    exempt={
        "distribution": "a sentence given its own encoding: over all sentences that sums to no "
        "distribution",
        "sample": "without a prior over latents there is nothing to sample from",
    },
    oracle="a matrix made by hand, in numpy: tests/parity/test_autoencoders.py",
)

Config = parts.FixedLengthAutoencoderConfig
SIZES = {
    "tiny": Config(width=12, latent=16, states=8, length=48),
    "small": Config(),
    "base": Config(width=512, latent=512, length=64),
}
RECIPES = parts.FIXED_LENGTH_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> Autoencoder:
    values, latent = (config.length - 1) * config.width, config.latent
    encode, decode = nn.Linear(values, latent), nn.Linear(latent, values)
    return parts.build_fixed_length_autoencoder(config, vocabulary, encode, decode)
