"""Sentence autoencoders and VAEs: shared settings and builders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeVar

from torch import nn

from lmlab.backbones.backbone_interfaces import LatentDecoder, SentenceEncoder
from lmlab.backbones.latent_decoders import (
    Bottleneck,
    FreeRunningDecoder,
    ParallelDecoder,
    TeacherForcedDecoder,
)
from lmlab.backbones.sentence_encoders import FlattenedEncoder, ProjectedEncoder, ReverseRNNEncoder
from lmlab.core.errors import UserError
from lmlab.core.parts import Emission
from lmlab.core.vocabulary import Vocabulary
from lmlab.inference.latent_distributions import (
    BernoulliLatent,
    DiagonalGaussian,
    FullGaussian,
    LatentFamily,
)
from lmlab.layers.noise import TokenNoise
from lmlab.models.latent_variable import Autoencoder, VariationalAutoencoder
from lmlab.objectives.elbo import ELBO, BoundName
from lmlab.objectives.reconstruction import ReconstructionObjective, TeacherForcedReconstruction
from lmlab.zoo._emissions import EmissionName, build_emission
from lmlab.zoo._recurrent import CellName, build_cell, embedding_for

LatentName = Literal["gaussian", "full-gaussian", "bernoulli"]
DecoderName = Literal["free-running", "teacher-forced"]

# Short sentences; batches large enough to amortise the mixture's emission table.
AUTOENCODER_MULTI30K = {
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "warmup_steps": 100,
    "tokens_per_batch": 2400,
    "epochs": 20,
}


@dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """Settings of training noise for sentence autoencoders."""

    latent_noise: float = field(default=0.0, metadata={"at_least": 0})
    """Gaussian noise on the latent in training, relative to the latent's RMS."""
    token_noise: float = field(default=0.0, metadata={"at_least": 0, "below": 1})
    """Share of the encoder's input tokens erased in training."""


@dataclass(frozen=True, kw_only=True)
class SentenceAutoencoderConfig(NoiseConfig):
    """Settings of a model that decodes a sentence from one latent vector."""

    width: int = field(default=128, metadata={"at_least": 1})
    """Size of embeddings and hidden states."""
    latent: int = field(default=128, metadata={"at_least": 1})
    """Latent size."""
    emission: EmissionName = "sphere-mixture"
    """Emission (output layer)."""
    states: int = field(default=400, metadata={"at_least": 1})
    """K, mixture components of a mixture emission."""
    dropout: float = field(default=0.0, metadata={"at_least": 0, "below": 1})
    """Dropout rate of embeddings and hidden states."""


@dataclass(frozen=True, kw_only=True)
class RecurrentAutoencoderConfig(SentenceAutoencoderConfig):
    """Settings of a recurrent sentence autoencoder."""

    decoder: DecoderName = "free-running"
    """free-running (fed the latent at every step) or teacher-forced (fed the preceding tokens; the
    latent is its initial state, so it need not hold what they predict)."""


@dataclass(frozen=True, kw_only=True)
class ELBOConfig(NoiseConfig):
    """Settings of the evidence lower bound (ELBO)."""

    latent: int = field(default=32, metadata={"at_least": 1})
    """Latent size."""
    posterior: LatentName = "gaussian"
    """gaussian (diagonal), full-gaussian (full covariance), or bernoulli (binary)."""
    anneal_steps: int = field(default=0, metadata={"at_least": 0})
    """KL annealing: steps over which the KL weight rises from 0 to 1; 0 for none."""
    free_bits: float = field(default=0.0, metadata={"at_least": 0})
    """Free bits: nats of KL per latent dimension and sentence that are not penalised."""
    bound: BoundName = "elbo"
    """Bound for scoring: elbo, or importance (IWAE; tighter with more samples)."""
    samples: int = field(default=4, metadata={"at_least": 1})
    """Posterior samples per scored sentence."""


@dataclass(frozen=True, kw_only=True)
class VAEConfig(ELBOConfig, SentenceAutoencoderConfig):
    """Settings of a variational autoencoder of sentences."""

    decoder: DecoderName = "teacher-forced"
    """teacher-forced (fed the preceding tokens) or free-running (fed the latent alone)."""
    latent_every_step: bool = False
    """Whether the latent is concatenated to every decoder input, not only its initial state."""
    word_dropout: float = field(default=0.0, metadata={"at_least": 0, "below": 1})
    """Word dropout: share of decoder inputs erased in training, so that it needs the latent."""

    def __post_init__(self) -> None:
        if self.decoder == "free-running" and (self.latent_every_step or self.word_dropout):
            raise UserError(
                "latent_every_step and word_dropout do not apply to decoder=free-running, which is "
                "fed the latent at every step and no words; remove them."
            )


@dataclass(frozen=True, kw_only=True)
class FixedLengthAutoencoderConfig(SentenceAutoencoderConfig):
    """Settings of an autoencoder over all positions of a fixed-length sentence at once."""

    length: int = field(default=64, metadata={"at_least": 2})
    """Maximum sentence length in tokens, <s> and </s> included."""


ConfigType = TypeVar("ConfigType", bound=VAEConfig)
AUTOENCODER_SIZES = {
    "tiny": RecurrentAutoencoderConfig(width=16, latent=16, states=8),
    "small": RecurrentAutoencoderConfig(),
    "base": RecurrentAutoencoderConfig(width=512, latent=512),
}
AUTOENCODER_RECIPES = {"multi30k": AUTOENCODER_MULTI30K}
FIXED_LENGTH_RECIPES = {"multi30k": {**AUTOENCODER_MULTI30K, "length": 20}}
VAE_RECIPES = {"multi30k": {**AUTOENCODER_MULTI30K, "dropout": 0.3, "learning_rate": 4e-3}}


def make_vae_sizes(config: type[ConfigType]) -> dict[str, ConfigType]:
    return {
        "tiny": config(width=12, latent=3, states=8, samples=16),
        "small": config(),
        "base": config(width=512, latent=64, dropout=0.3),
    }


def make_autoencoder_emission(
    config: SentenceAutoencoderConfig, vocabulary: Vocabulary
) -> Emission:
    """The configured emission, untied."""
    return build_emission(
        config.emission,
        config.width,
        vocabulary,
        tied=None,
        states=config.states,
        dropout=config.dropout,
    )


def make_latent(name: LatentName, size: int) -> LatentFamily:
    """Latent distribution family by name."""
    kinds: dict[str, type[DiagonalGaussian] | type[BernoulliLatent]] = {
        "gaussian": DiagonalGaussian,
        "full-gaussian": FullGaussian,
        "bernoulli": BernoulliLatent,
    }
    return kinds[name](size)


def make_token_noise(rate: float, vocabulary: Vocabulary) -> TokenNoise | None:
    """Token noise, or None if the rate is zero."""
    return TokenNoise(rate, vocabulary) if rate else None


def build_vae(
    config: VAEConfig, vocabulary: Vocabulary, cell: CellName, off: tuple[int, ...] = ()
) -> VariationalAutoencoder:
    """Sentence VAE: right-to-left encoder, latent, decoder initialised from it; one cell type."""
    embedding = embedding_for(config.emission, vocabulary.size, config.width)
    decoder = make_vae_decoder(config, embedding, cell, off)
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


def make_vae_decoder(
    config: VAEConfig, embedding: nn.Embedding, cell: CellName, off: tuple[int, ...]
) -> LatentDecoder:
    """The configured recurrent decoder of a VAE."""
    if config.decoder == "free-running":
        fed_latent = build_cell(cell, config.latent, config.width, off)
        return FreeRunningDecoder(fed_latent, latent=config.latent, dropout=config.dropout)
    input_width = config.width + (config.latent if config.latent_every_step else 0)
    return TeacherForcedDecoder(
        embedding,
        build_cell(cell, input_width, config.width, off),
        latent=config.latent,
        latent_every_step=config.latent_every_step,
        dropout=config.dropout,
    )


def build_elbo(
    config: ELBOConfig,
    vocabulary: Vocabulary,
    encoder: SentenceEncoder,
    *,
    word_dropout: TokenNoise | None = None,
) -> ELBO:
    """ELBO objective of the config."""
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
    *,
    objective: type[ReconstructionObjective] = ReconstructionObjective,
) -> Autoencoder:
    """Autoencoder: encoder, latent vector, decoder."""
    return Autoencoder(
        vocabulary=vocabulary,
        backbone=Bottleneck(encoder, decoder),
        emission=make_autoencoder_emission(config, vocabulary),
        objective=objective(
            latent_noise=config.latent_noise,
            token_noise=make_token_noise(config.token_noise, vocabulary),
        ),
    )


def build_recurrent_autoencoder(
    config: RecurrentAutoencoderConfig, vocabulary: Vocabulary, cell: CellName
) -> Autoencoder:
    """Recurrent autoencoder: right-to-left encoder, free-running or teacher-forced decoder."""
    embedding = embedding_for(config.emission, vocabulary.size, config.width)
    encoder_cell = build_cell(cell, config.width, config.width)
    encoder = ReverseRNNEncoder(embedding, encoder_cell, dropout=config.dropout)
    to_latent = nn.Linear(config.width, config.latent)
    projected = ProjectedEncoder(encoder, to_latent, width=config.latent)
    if config.decoder == "teacher-forced":
        forced = TeacherForcedDecoder(
            embedding,
            build_cell(cell, config.width, config.width),
            latent=config.latent,
            dropout=config.dropout,
        )
        return build_autoencoder(
            config, vocabulary, projected, forced, objective=TeacherForcedReconstruction
        )
    decoder_cell = build_cell(cell, config.latent, config.width)
    free = FreeRunningDecoder(decoder_cell, latent=config.latent, dropout=config.dropout)
    return build_autoencoder(config, vocabulary, projected, free)


def build_fixed_length_autoencoder(
    config: FixedLengthAutoencoderConfig,
    vocabulary: Vocabulary,
    encode: nn.Module,
    decode: nn.Module,
) -> Autoencoder:
    """Autoencoder of all positions: `encode` maps (T - 1) · width to latent, `decode` back."""
    positions, width, latent = config.length - 1, config.width, config.latent
    embedding = embedding_for(config.emission, vocabulary.size, config.width)
    return build_autoencoder(
        config,
        vocabulary,
        FlattenedEncoder(embedding, encode, max_length=positions, width=latent),
        ParallelDecoder(decode, latent=latent, max_length=positions, width=width),
    )
