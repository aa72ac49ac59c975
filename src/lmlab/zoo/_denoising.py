"""What the encoder-decoders share that restore what a source hides: BART, PEGASUS, PALM."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from lmlab.backbones.encoder_decoder import TransformerEncoderDecoder
from lmlab.backbones.pointer_encoder_decoder import (
    PointerEncoderDecoder,
    TwoOutputEncoderDecoder,
)
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.pointer import Pointer
from lmlab.layers.weight_init import init_transformer_weights
from lmlab.models.denoising_seq2seq import DenoisingPointerGenerator, DenoisingSeq2Seq
from lmlab.objectives.denoising_base import (
    DenoisingObjective,
    DenoisingSpecialTokens,
)
from lmlab.objectives.sentence_splitting import SentenceSplitter
from lmlab.zoo._transformer import (
    DecoderConfig,
    make_encoder_decoder,
    make_softmax,
    make_token_embedding,
)


@dataclass(frozen=True, kw_only=True)
class DenoisingConfig(DecoderConfig):
    """Settings of an encoder-decoder that restores what a source hides."""

    decoder_layers: int = field(default=0, metadata={"at_least": 0})
    """Blocks of the decoder; 0 for as many as the encoder has."""
    scaled_embeddings: bool = False
    """Whether embeddings are multiplied by √width."""
    full_mask_rate: float = field(default=0.0, metadata={"at_least": 0, "at_most": 1})
    """Share of the texts whose source is one mask symbol alone, and which are written whole: what
    its score of a text is given."""
    mask: int | None = field(default=None, metadata={"at_least": 0})
    """Id of the symbol that hides; the tokeniser's own where none is given."""
    decoder_prefix: tuple[int, ...] = ()
    """Ids that the decoder is given first; the start symbol where none are given."""
    source_has_start: bool = True
    """Whether a source begins with the start symbol."""


@dataclass(frozen=True, kw_only=True)
class PostNormDenoisingConfig(DenoisingConfig):
    """Settings of one whose layers are BERT's, as those of BART and PALM are."""

    pre_norm: bool = False
    """Norm before each sublayer, and one at the end; else after each."""
    embedding_norm: bool = True
    """Whether a norm stands after the embedding."""


def make_special_tokens(config: DenoisingConfig, vocabulary: Vocabulary) -> DenoisingSpecialTokens:
    return DenoisingSpecialTokens.from_vocabulary(
        vocabulary,
        mask=config.mask,
        opening=config.decoder_prefix,
        source_start=config.source_has_start,
    )


def make_sentence_splitter(vocabulary: Vocabulary) -> SentenceSplitter:
    """What cuts texts into sentences; in contiguous text the end of a line ends one too."""
    return SentenceSplitter(() if vocabulary.end is None else (vocabulary.end,))


def make_backbone(config: DenoisingConfig, tokens: nn.Embedding) -> TransformerEncoderDecoder:
    return make_encoder_decoder(
        config,
        tokens,
        decoder_layers=config.decoder_layers or None,
        scaled=config.scaled_embeddings,
    )


def make_denoising_encoder_decoder(
    config: DenoisingConfig, tokens: nn.Embedding, vocabulary: Vocabulary, *, copies: bool
) -> TwoOutputEncoderDecoder:
    """The same where both ends are asked, with a pointer to the source where words are copied."""
    made = make_backbone(config, tokens)
    if not copies:
        return TwoOutputEncoderDecoder(made.encoder, made.decoder)
    pointer = Pointer(config.width)
    init_transformer_weights(pointer, config.width)
    return PointerEncoderDecoder(made.encoder, made.decoder, pointer, vocabulary)


def make_denoising_seq2seq(
    config: DenoisingConfig,
    vocabulary: Vocabulary,
    objective: DenoisingObjective,
    *,
    kind: type[DenoisingSeq2Seq] = DenoisingSeq2Seq,
    tokens: nn.Embedding | None = None,
    backbone: TransformerEncoderDecoder | None = None,
) -> DenoisingSeq2Seq:
    """The system and its window; a backbone that is given stands on the given tokens."""
    tokens = tokens or make_token_embedding(config, vocabulary)
    backbone = backbone or make_backbone(config, tokens)
    system = (DenoisingPointerGenerator if isinstance(backbone, PointerEncoderDecoder) else kind)(
        vocabulary=vocabulary,
        backbone=backbone,
        emission=make_softmax(config, vocabulary, tokens, bias=True),
        objective=objective,
    )
    # The encoder reads a whole text with its symbols, the decoder all but the last of them.
    system.window = config.length - max(1, len(config.decoder_prefix) - 1)
    return system
