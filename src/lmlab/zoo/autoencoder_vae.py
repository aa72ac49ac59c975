"""VAE over the latent vectors of a trained, frozen sentence autoencoder (latent-space VAE).

    u ~ N(0, I);  z = f(u);  p(s | u) = Π_t p(s_t | decoder(z))
    log p(s) ≥ E_q(u|s) log p(s | u) - KL(q(u | s) || N(0, I)),  q(u | s) from g(encoder(s))

Encoder, decoder and emission are those of the run `--base`, an autoencoder, and stay frozen; only
the two small networks f and g are trained. This gives the autoencoder a prior without training a
VAE from scratch. Words are conditionally independent given u if the autoencoder's decoder is not
teacher-forced.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

from torch import nn

from lmlab.backbones.latent_decoders import MappedLatentDecoder
from lmlab.backbones.sentence_encoders import ProjectedEncoder
from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.latent_variable import Autoencoder, VariationalAutoencoder
from lmlab.zoo._sentence_autoencoders import AUTOENCODER_RECIPES, ELBOConfig, build_elbo

CARD = Card(
    family="autoencoder",
    kind="bound",
    paper="Kingma and Welling 2014; cf. Shen et al. 2020, Educating Text Autoencoders",
    source="003, under DLM53",
    protocols=("LogProb", "Sample", "Encode", "Given"),
    objectives=("elbo",),
    needs=("base",),
    base="linear-autoencoder",
    exempt={
        "input-dependence": "given its latent it takes no input, so none can change a prediction",
        "sample": "its score lies below the probability that it samples by; tests/parity/"
        "test_vae.py compares samples with the integral over the latent",
    },
    oracle="ELBO ≤ importance-weighted ≤ exact by quadrature: tests/parity/test_vae.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(ELBOConfig):
    """Settings of a VAE over the latents of an autoencoder."""

    ffn_width: int = field(default=256, metadata={"at_least": 1})
    """Hidden size of both networks."""


SIZES = {
    "tiny": Config(latent=4, ffn_width=16, samples=16),
    "small": Config(),
    "base": Config(latent=64, ffn_width=1024),
}
RECIPES = AUTOENCODER_RECIPES


def build(config: Config, vocabulary: Vocabulary, base: System) -> VariationalAutoencoder:
    if not isinstance(base, Autoencoder):
        raise UserError("the base of autoencoder-vae must be an autoencoder; give a run of one.")
    frozen, hidden, width = deepcopy(base), config.ffn_width, base.decoder.latent
    # Latents have any scale; normalise them for the network.
    encode = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, hidden), nn.Tanh())
    decode = nn.Sequential(nn.Linear(config.latent, hidden), nn.Tanh(), nn.Linear(hidden, width))
    encoder = ProjectedEncoder(frozen.backbone.encoder, encode, width=hidden)
    return VariationalAutoencoder(
        vocabulary=vocabulary,
        backbone=MappedLatentDecoder(decode, frozen.decoder, latent=config.latent),
        emission=frozen.emission,
        objective=build_elbo(config, vocabulary, encoder),
        frozen=(frozen.backbone.encoder, frozen.decoder, frozen.emission),
    )
