"""Recurrent encoder-decoders (seq2seq): shared settings and builders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from lmlab.backbones.rnn_decoders import RNNDecoder
from lmlab.backbones.rnn_encoder_decoder import RNNEncoder, RNNEncoderDecoder
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax
from lmlab.layers.recurrent_cells import GRUCell, LSTMCell, RecurrentCell, TanhCell
from lmlab.models.latent_start_seq2seq import LatentStartSeq2Seq
from lmlab.models.seq2seq import EncoderDecoderLM
from lmlab.objectives.conditional_lm import ConditionalLM
from lmlab.objectives.sampled_losses import NextTokenLossConfig
from lmlab.zoo._next_token import uniform_embedding

Seq2SeqCellName = Literal["rnn", "lstm", "gru"]
SEQ2SEQ_CELLS: dict[Seq2SeqCellName, type[RecurrentCell]] = {
    "rnn": TanhCell,
    "lstm": LSTMCell,
    "gru": GRUCell,
}


@dataclass(frozen=True, kw_only=True)
class RecurrentSeq2SeqConfig(NextTokenLossConfig):
    """Settings of a recurrent encoder-decoder."""

    width: int = field(default=256, metadata={"at_least": 2})
    """Size of hidden states and embeddings."""
    layers: int = field(default=1, metadata={"at_least": 1})
    """Layers of the encoder and of the decoder."""
    cell: Seq2SeqCellName = "gru"
    """rnn, lstm or gru."""
    bidirectional: bool = False
    """Whether the encoder is bidirectional, with half the width per direction."""
    reverse_source: bool = False
    """Whether to reverse the source (Sutskever et al. 2014)."""
    dropout: float = field(default=0.3, metadata={"at_least": 0, "below": 1})
    """Dropout rate of embeddings and layer outputs."""
    tied: bool = True
    """Weight tying: output vectors are the decoder's embeddings."""
    shared_embeddings: bool = False
    """Whether encoder and decoder share embeddings."""
    latent_choices: int = field(default=1, metadata={"at_least": 1})
    """Values of a latent variable between source and target, summed out exactly; 1 for none."""
    label_smoothing: float = field(default=0.0, metadata={"at_least": 0, "below": 1})
    """Label smoothing: probability mass spread uniformly over all tokens in training."""

    def __post_init__(self) -> None:
        if self.bidirectional and self.width % 2:
            raise UserError(f"width must be even for a bidirectional encoder, got {self.width}.")


SEQ2SEQ_MULTI30K = {
    # German to English on two cores; results in docs/translation.md.
    "dropout": 0.3,
    "label_smoothing": 0.1,
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "warmup_steps": 200,
    "tokens_per_batch": 2048,
    "weight_decay": 0.01,
    "vocabulary_size": 4000,
    "grad_clip": 1.0,
    "average": 5,
}


MakeDecoder = Callable[[nn.Embedding, list[RecurrentCell]], RNNDecoder]


def build_recurrent_seq2seq(
    config: RecurrentSeq2SeqConfig,
    vocabulary: Vocabulary,
    make_decoder: MakeDecoder,
    *,
    wide_inputs: bool,
    source: Vocabulary | None,
) -> EncoderDecoderLM:
    """Encoder and the decoder built by `make_writer`, with inputs twice as wide if `joined`.

    `source` is the source vocabulary, if different.
    """
    if config.latent_choices > 1 and config.label_smoothing:
        raise UserError(
            "label smoothing does not apply to a mixture over latent values; use --set "
            "label_smoothing=0, or latent_choices=1."
        )
    if config.shared_embeddings and source is not None:
        raise UserError(
            "shared=true does not apply to a source vocabulary of its own; remove it, or remove "
            "--source-tokenizer."
        )
    target_embedding = uniform_embedding(vocabulary.size, config.width)
    # Source embeddings enter no softmax, and train faster at unit scale.
    source_embedding = (
        target_embedding
        if config.shared_embeddings
        else nn.Embedding((source or vocabulary).size, config.width)
    )
    inputs = config.width * (2 if wide_inputs else 1)
    cells = _cells(config, config.width, input_width=inputs)
    backbone = RNNEncoderDecoder(
        make_source_encoder(config, source_embedding), make_decoder(target_embedding, cells)
    )
    emission = Softmax(config.width, vocabulary, tied=target_embedding if config.tied else None)
    objective = ConditionalLM(vocabulary, source=source, smoothing=config.label_smoothing)
    if config.latent_choices > 1:
        return LatentStartSeq2Seq(
            vocabulary=vocabulary,
            backbone=backbone,
            emission=emission,
            objective=objective,
            choices=config.latent_choices,
        )
    return EncoderDecoderLM(
        vocabulary=vocabulary, backbone=backbone, emission=emission, objective=objective
    )


def make_source_encoder(config: RecurrentSeq2SeqConfig, embedding: nn.Embedding) -> RNNEncoder:
    width = config.width // 2 if config.bidirectional else config.width
    forward_cells = _cells(config, width, input_width=config.width)
    backward_cells = _cells(config, width, input_width=config.width) if config.bidirectional else []
    return RNNEncoder(
        embedding,
        forward_cells,
        backward_cells,
        dropout=config.dropout,
        reversed_=config.reverse_source,
    )


def _cells(config: RecurrentSeq2SeqConfig, width: int, *, input_width: int) -> list[RecurrentCell]:
    cell = SEQ2SEQ_CELLS[config.cell]
    return [cell(config.width if layer else input_width, width) for layer in range(config.layers)]
