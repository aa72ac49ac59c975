"""Sentence variational autoencoder (VAE), choice of recurrent cells; Gaussian or binary latent.

    z ~ N(0, I) or bits;  h_0 = A z + a, h_t = cell(x_t, h_{t-1});  p(next | h_t) a mixture
    log p(s) ≥ E_q(z|s) log p(s | z) - KL(q(z | s) || p(z))

`cell` is the cell of encoder and decoder, `off` the ablated terms of a switchable one, for example
`--set cell=gru-minimal --set off=0,4,5`. The latent is Gaussian, with a diagonal or a full
covariance, or binary. Scores are the whole ELBO, in nats per predicted token.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.latent_variable import VariationalAutoencoder
from lmlab.zoo._recurrent import CellName
from lmlab.zoo._sentence_autoencoders import VAE_RECIPES, VAEConfig, build_vae, make_vae_sizes

CARD = Card(
    family="autoencoder",
    kind="bound",
    paper="Bowman et al. 2016, Generating Sentences from a Continuous Space; Kingma et al. 2016 "
    "(free bits); Burda et al. 2016, Importance Weighted Autoencoders",
    source="003 DLM51",
    aliases=("DLM51",),
    protocols=("LogProb", "Sample", "Encode", "Given"),
    objectives=("elbo",),
    exempt={
        "sample": "its score lies below the probability that it samples by; tests/parity/"
        "test_vae.py compares samples with the integral over the latent"
    },
    oracle="ELBO ≤ importance-weighted ≤ exact by quadrature: tests/parity/test_vae.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(VAEConfig):
    """Settings of a sentence VAE with gated cells."""

    cell: CellName = "gru"
    """Recurrent cell of encoder and decoder."""
    off: tuple[int, ...] = ()
    """Terms of the cell to ablate, by number."""


SIZES = make_vae_sizes(Config)
RECIPES = VAE_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> VariationalAutoencoder:
    return build_vae(config, vocabulary, config.cell, config.off)
