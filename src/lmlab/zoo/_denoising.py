"""Denoising encoder-decoders (BART, PEGASUS, PALM): shared settings, special tokens, builders."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from lmlab.backbones.encoder_decoder import (
    PointerEncoderDecoder,
    TransformerEncoderDecoder,
    TwoOutputEncoderDecoder,
)
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.denoising_seq2seq import DenoisingPointerGenerator, DenoisingSeq2Seq
from lmlab.objectives.denoising_base import (
    DenoisingObjective,
    DenoisingSpecialTokens,
    SentenceSplitter,
)
from lmlab.zoo._transformer import (
    add_pointer,
    make_encoder_decoder,
    make_softmax,
    make_token_embedding,
)
from lmlab.zoo._transformer_config import EncoderDecoderConfig


@dataclass(frozen=True, kw_only=True)
class DenoisingConfig(EncoderDecoderConfig):
    """Settings of a denoising encoder-decoder."""

    decoder_layers: int = field(default=0, metadata={"at_least": 0})
    """Decoder layers; 0 for as many as the encoder has."""
    scaled_embeddings: bool = False
    """Whether to multiply embeddings by √width."""
    full_mask_rate: float = field(default=0.0, metadata={"at_least": 0, "at_most": 1})
    """Share of the texts whose source is a single <mask> and whose target is the whole text: the
    condition under which texts are scored."""
    mask: int | None = field(default=None, metadata={"at_least": 0})
    """Id of the mask token; None for the tokenizer's own."""
    decoder_prefix: tuple[int, ...] = ()
    """Ids of the decoder prefix; empty for the start token."""
    source_has_start: bool = True
    """Whether a source begins with the start token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tied_encoder_decoder and self.decoder_layers not in (0, self.layers):
            raise UserError(
                f"decoder_layers must be {self.layers}, as many as the encoder's, where both share "
                f"them (tied_encoder_decoder), got {self.decoder_layers}; remove it."
            )


@dataclass(frozen=True, kw_only=True)
class PostNormDenoisingConfig(DenoisingConfig):
    """Settings of a denoising encoder-decoder with post-norm layers (BART, PALM)."""

    pre_norm: bool = False
    """Pre-norm: norm before each sublayer and a final one; else post-norm."""
    embedding_norm: bool = True
    """Whether to normalise the embedding output."""


def make_special_tokens(config: DenoisingConfig, vocabulary: Vocabulary) -> DenoisingSpecialTokens:
    return DenoisingSpecialTokens.from_vocabulary(
        vocabulary,
        mask=config.mask,
        decoder_prefix=config.decoder_prefix,
        source_has_start=config.source_has_start,
    )


def make_sentence_splitter(vocabulary: Vocabulary) -> SentenceSplitter:
    """Sentence splitter; in contiguous text a line end also ends a sentence."""
    return SentenceSplitter(() if vocabulary.end is None else (vocabulary.end,))


def make_backbone(config: DenoisingConfig, tokens: nn.Embedding) -> TransformerEncoderDecoder:
    return make_encoder_decoder(
        config,
        tokens,
        decoder_layers=config.decoder_layers or None,
        shared=config.tied_encoder_decoder,
        scaled=config.scaled_embeddings,
    )


def make_denoising_encoder_decoder(
    config: DenoisingConfig, tokens: nn.Embedding, vocabulary: Vocabulary, *, copies: bool
) -> TwoOutputEncoderDecoder:
    """Encoder-decoder with outputs at both stacks; a pointer network if `copies`."""
    backbone = make_backbone(config, tokens)
    if not copies:
        return TwoOutputEncoderDecoder(backbone.encoder, backbone.decoder)
    return add_pointer(backbone, vocabulary)


def make_denoising_seq2seq(
    config: DenoisingConfig,
    vocabulary: Vocabulary,
    objective: DenoisingObjective,
    *,
    kind: type[DenoisingSeq2Seq] = DenoisingSeq2Seq,
    tokens: nn.Embedding | None = None,
    backbone: TransformerEncoderDecoder | None = None,
) -> DenoisingSeq2Seq:
    """Denoising seq2seq model; a given `backbone` must use the given `tokens`."""
    tokens = tokens or make_token_embedding(config, vocabulary)
    backbone = backbone or make_backbone(config, tokens)
    if isinstance(backbone, PointerEncoderDecoder):
        kind = DenoisingPointerGenerator
    return kind(
        vocabulary=vocabulary,
        backbone=backbone,
        emission=make_softmax(config, vocabulary, tokens, bias=True),
        objective=objective,
    )
