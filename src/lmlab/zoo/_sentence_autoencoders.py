"""What latent-variable models and autoencoders of sentences share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from lmlab.backbones.backbone_interfaces import (
    LatentDecoder,
    SentenceEncoder,
)
from lmlab.backbones.bottleneck import Bottleneck
from lmlab.backbones.latent_decoders import (
    FreeRunningDecoder,
    TeacherForcedDecoder,
)
from lmlab.backbones.sentence_encoders import (
    ProjectedEncoder,
    ReverseRNNEncoder,
)
from lmlab.core.parts import Emission
from lmlab.core.vocabulary import Vocabulary
from lmlab.inference.latent_distributions import (
    BernoulliLatent,
    DiagonalGaussian,
    FullGaussian,
    LatentFamily,
)
from lmlab.layers.noise import TokenNoise
from lmlab.layers.sphere_embedding import SphereEmbedding
from lmlab.models.latent_variable import (
    Autoencoder,
    VariationalAutoencoder,
)
from lmlab.objectives.elbo import ELBO, BoundName
from lmlab.objectives.reconstruction import ReconstructionObjective
from lmlab.zoo._cells import CellName, build_cell
from lmlab.zoo._emissions import EmissionName, build_emission

LatentName = Literal["gaussian", "full-gaussian", "bernoulli"]

# Short sentences; as many tokens at once as make the table of a mixture worth its while.
AUTOENCODER_MULTI30K = {
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "warmup_steps": 100,
    "tokens_per_batch": 2400,
    "epochs": 20,
}


@dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """Settings of the noise that a model of sentences is trained under."""

    latent_noise: float = field(default=0.0, metadata={"at_least": 0})
    """Gaussian noise on the latent in training, in units of the latent's own size."""
    token_noise: float = field(default=0.0, metadata={"at_least": 0, "below": 1})
    """Share of the tokens that the encoder reads erased in training."""


@dataclass(frozen=True, kw_only=True)
class SentenceAutoencoderConfig(NoiseConfig):
    """Settings of a model that writes a sentence from one latent vector."""

    width: int = field(default=128, metadata={"at_least": 1})
    """Numbers in an embedding and in a hidden state."""
    latent: int = field(default=128, metadata={"at_least": 1})
    """Numbers of the latent vector."""
    emission: EmissionName = "sphere-mixture"
    """What a hidden state becomes a distribution by."""
    states: int = field(default=400, metadata={"at_least": 1})
    """K, the states of a mixture emission."""
    dropout: float = field(default=0.0, metadata={"at_least": 0, "below": 1})
    """Share of embeddings and hidden states set to zero in training."""


@dataclass(frozen=True, kw_only=True)
class ELBOConfig(NoiseConfig):
    """Settings of a bound on the probability of a sentence."""

    latent: int = field(default=32, metadata={"at_least": 1})
    """Numbers of the latent vector."""
    posterior: LatentName = "gaussian"
    """gaussian (diagonal), full-gaussian (with a covariance), or bernoulli (bits)."""
    anneal_steps: int = field(default=0, metadata={"at_least": 0})
    """Steps over which the weight of the KL rises from 0 to 1; 0 for full weight at once."""
    free_bits: float = field(default=0.0, metadata={"at_least": 0})
    """Nats for each latent number and sentence that cost nothing in training."""
    bound: BoundName = "elbo"
    """How a sentence is scored: elbo, or importance (tighter, the more samples)."""
    samples: int = field(default=4, metadata={"at_least": 1})
    """Points of the posterior at which a sentence is scored."""


@dataclass(frozen=True, kw_only=True)
class VAEConfig(ELBOConfig, SentenceAutoencoderConfig):
    """Settings of a variational autoencoder of sentences."""

    latent_every_step: bool = False
    """Whether the latent joins every input of the decoder, beside starting it."""
    word_dropout: float = field(default=0.0, metadata={"at_least": 0, "below": 1})
    """Share of the words fed to the decoder erased in training, so that it needs the latent."""


@dataclass(frozen=True, kw_only=True)
class FixedLengthAutoencoderConfig(SentenceAutoencoderConfig):
    """Settings of an autoencoder that reads and writes all places of a sentence at once."""

    length: int = field(default=64, metadata={"at_least": 2})
    """Tokens of the longest sentence, <s> and </s> counted, as a corpus counts where it cuts."""


def build_embedding(config: SentenceAutoencoderConfig, vocabulary: Vocabulary) -> nn.Embedding:
    """On the sphere where the emission is."""
    if "sphere" in config.emission:
        return SphereEmbedding(vocabulary.size, config.width)
    embedding = nn.Embedding(vocabulary.size, config.width)
    nn.init.uniform_(embedding.weight, -0.1, 0.1)
    return embedding


def make_autoencoder_emission(
    config: SentenceAutoencoderConfig, vocabulary: Vocabulary
) -> Emission:
    """The emission of the config's name, untied."""
    return build_emission(
        config.emission,
        config.width,
        vocabulary,
        tied=None,
        states=config.states,
        dropout=config.dropout,
    )


def make_latent(name: LatentName, size: int) -> LatentFamily:
    """The kind of latent of that name."""
    kinds: dict[str, type[DiagonalGaussian] | type[BernoulliLatent]] = {
        "gaussian": DiagonalGaussian,
        "full-gaussian": FullGaussian,
        "bernoulli": BernoulliLatent,
    }
    return kinds[name](size)


def make_token_noise(rate: float, vocabulary: Vocabulary) -> TokenNoise | None:
    """Nothing where the rate is zero."""
    return TokenNoise(rate, vocabulary) if rate else None


def build_vae(
    config: VAEConfig, vocabulary: Vocabulary, cell: CellName, off: tuple[int, ...] = ()
) -> VariationalAutoencoder:
    """Right-to-left encoder, latent, decoder that starts from it; one cell each, of one kind."""
    embedding = build_embedding(config, vocabulary)
    heard = config.width + (config.latent if config.latent_every_step else 0)
    decoder = TeacherForcedDecoder(
        embedding,
        build_cell(cell, heard, config.width, off),
        latent=config.latent,
        latent_every_step=config.latent_every_step,
        dropout=config.dropout,
    )
    encoder = ReverseRNNEncoder(
        embedding, build_cell(cell, config.width, config.width, off), dropout=config.dropout
    )
    return VariationalAutoencoder(
        vocabulary=vocabulary,
        backbone=decoder,
        emission=make_autoencoder_emission(config, vocabulary),
        objective=build_elbo(
            config,
            vocabulary,
            encoder,
            word_dropout=make_token_noise(config.word_dropout, vocabulary),
        ),
    )


def build_elbo(
    config: ELBOConfig,
    vocabulary: Vocabulary,
    encoder: SentenceEncoder,
    *,
    word_dropout: TokenNoise | None = None,
) -> ELBO:
    """The bound with all that the config says of it."""
    return ELBO(
        encoder,
        make_latent(config.posterior, config.latent),
        anneal_steps=config.anneal_steps,
        free_bits=config.free_bits,
        latent_noise=config.latent_noise,
        token_noise=make_token_noise(config.token_noise, vocabulary),
        word_dropout=word_dropout,
        samples=config.samples,
        bound=config.bound,
    )


def build_autoencoder(
    config: SentenceAutoencoderConfig,
    vocabulary: Vocabulary,
    encoder: SentenceEncoder,
    decoder: LatentDecoder,
) -> Autoencoder:
    """An encoder and a decoder with a vector between them."""
    return Autoencoder(
        vocabulary=vocabulary,
        backbone=Bottleneck(encoder, decoder),
        emission=make_autoencoder_emission(config, vocabulary),
        objective=ReconstructionObjective(
            latent_noise=config.latent_noise,
            token_noise=make_token_noise(config.token_noise, vocabulary),
        ),
    )


def build_recurrent_autoencoder(
    config: SentenceAutoencoderConfig, vocabulary: Vocabulary, cell: CellName
) -> Autoencoder:
    """A cell reads the sentence right to left, another is unrolled from what it kept."""
    embedding = build_embedding(config, vocabulary)
    read = build_cell(cell, config.width, config.width)
    reader = ReverseRNNEncoder(embedding, read, dropout=config.dropout)
    to_latent = nn.Linear(config.width, config.latent)
    write = build_cell(cell, config.latent, config.width)
    return build_autoencoder(
        config,
        vocabulary,
        ProjectedEncoder(reader, to_latent, width=config.latent),
        FreeRunningDecoder(write, latent=config.latent, dropout=config.dropout),
    )
