"""MLP sentence autoencoder: two layers from all positions to one vector, two back.

    z = C_2 f(C_1 [e(s_1), …, e(s_n)] + c_1) + c_2;  [h_1, …, h_n] = D_2 f(D_1 z + d_1) + d_2

f is tanh, or the `activation`. Positions after the end of a sentence are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.latent_variable import Autoencoder
from lmlab.zoo import _sentence_autoencoders as parts

CARD = Card(
    family="autoencoder",
    kind="reconstruction",
    paper="Hinton and Salakhutdinov 2006, Reducing the Dimensionality of Data with Neural "
    "Networks; Vincent et al. 2008 (denoising)",
    source="003 DLM56",
    aliases=("DLM56",),
    protocols=("LogProb", "Encode", "Given"),
    objectives=("reconstruction",),
    exempt={
        "distribution": "a sentence given its own encoding: over all sentences that sums to no "
        "distribution",
        "sample": "without a prior over latents there is nothing to sample from",
    },
    oracle="two layers by hand, in numpy: tests/parity/test_autoencoders.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.FixedLengthAutoencoderConfig):
    """Settings of the MLP autoencoder."""

    ffn_width: int = field(default=256, metadata={"at_least": 1})
    """Hidden size of encoder and decoder MLPs."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation of the hidden units: tanh or relu."""


SIZES = {
    "tiny": Config(width=12, latent=16, states=8, length=48, ffn_width=16),
    "small": Config(),
    "base": Config(width=512, latent=512, length=64, ffn_width=1024),
}
RECIPES = parts.FIXED_LENGTH_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> Autoencoder:
    values, latent = (config.length - 1) * config.width, config.latent
    hidden, activation = config.ffn_width, {"tanh": nn.Tanh, "relu": nn.ReLU}[config.activation]
    encode = nn.Sequential(nn.Linear(values, hidden), activation(), nn.Linear(hidden, latent))
    decode = nn.Sequential(nn.Linear(latent, hidden), activation(), nn.Linear(hidden, values))
    return parts.build_fixed_length_autoencoder(config, vocabulary, encode, decode)
