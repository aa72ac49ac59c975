"""Sentence variational autoencoder (VAE, Bowman et al. 2016): simple RNNs, Gaussian latent.

    z ~ N(0, I);  h_0 = A z + a, h_t = tanh(W x_t + U h_{t-1} + b);  p(next | h_t) a mixture
    log p(s) ≥ E_q(z|s) log p(s | z) - KL(q(z | s) || N(0, I))

The encoder runs right to left. It is prone to posterior collapse: a teacher-forced decoder can
ignore the latent. `anneal_steps`, `free_bits` and `word_dropout` are the known remedies (Bowman et
al. 2016).
"""

from __future__ import annotations

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.latent_variable import VariationalAutoencoder
from lmlab.zoo._sentence_autoencoders import VAE_RECIPES, VAEConfig, build_vae, make_vae_sizes

CARD = Card(
    family="autoencoder",
    kind="bound",
    paper="Kingma and Welling 2014, Auto-Encoding Variational Bayes; Bowman et al. 2016, "
    "Generating Sentences from a Continuous Space",
    source="003 DLM50",
    aliases=("DLM50",),
    protocols=("LogProb", "Sample", "Encode", "Given"),
    objectives=("elbo",),
    exempt={
        "sample": "its score lies below the probability that it samples by; tests/parity/"
        "test_vae.py compares samples with the integral over the latent"
    },
    oracle="ELBO ≤ importance-weighted ≤ exact by quadrature: tests/parity/test_vae.py",
)

Config = VAEConfig
SIZES = make_vae_sizes(Config)
RECIPES = VAE_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> VariationalAutoencoder:
    return build_vae(config, vocabulary, "rnn")
