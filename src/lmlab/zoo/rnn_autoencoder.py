"""Elman RNN sentence autoencoder: encode to one vector, decode from it.

    z = C · RNN(e(s_n), …, e(s_1)) + c;  h_0 = A z + a, h_t = tanh(W z + U h_{t-1} + b);
    p(s_t | h_t)

The decoder is free-running: its input is the latent at every step and never the previous words.
With `--set decoder=teacher-forced` it is fed the previous words,
h_t = tanh(W e(s_{t-1}) + U h_{t-1} + b). Either way the score is a reconstruction, not a
likelihood: the latent is computed from the sentence itself.
"""

from __future__ import annotations

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.latent_variable import Autoencoder
from lmlab.zoo import _sentence_autoencoders as parts

CARD = Card(
    family="autoencoder",
    kind="reconstruction",
    paper="Elman 1990 (the cell); Sutskever et al. 2014, Sequence to Sequence Learning; Vincent et "
    "al. 2008 (denoising)",
    source="003 DLM54",
    aliases=("DLM54",),
    protocols=("LogProb", "Encode", "Given"),
    objectives=("reconstruction",),
    exempt={
        "distribution": "a sentence given its own encoding: over all sentences that sums to no "
        "distribution",
        "sample": "without a prior over latents there is nothing to sample from",
    },
    oracle="torch.nn.RNN with the same weights: tests/parity/test_autoencoders.py",
)

Config = parts.RecurrentAutoencoderConfig
SIZES = parts.AUTOENCODER_SIZES
RECIPES = parts.AUTOENCODER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> Autoencoder:
    return parts.build_recurrent_autoencoder(config, vocabulary, "rnn")
