"""What the encoder-decoders share that restore what a source hides: BART, PEGASUS, PALM."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from lmlab.backbones.encoder_decoder import EncoderDecoder
from lmlab.backbones.pointer_encoder_decoder import (
    Copying,
    ReadingWriting,
)
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.pointer import Pointer
from lmlab.layers.weight_init import initialise
from lmlab.models.denoising_seq2seq import Continuing, Restoring
from lmlab.objectives.denoising_base import (
    HiddenSource,
    Spelling,
)
from lmlab.objectives.sentence_splitting import Sentences
from lmlab.zoo._transformer import (
    DecoderConfig,
    make_encoder_decoder,
    make_softmax,
    make_tokens,
)


@dataclass(frozen=True, kw_only=True)
class DenoisingConfig(DecoderConfig):
    """Settings of an encoder-decoder that restores what a source hides."""

    decoder_layers: int = field(default=0, metadata={"at_least": 0})
    """Blocks of the decoder; 0 for as many as the encoder has."""
    scaled: bool = False
    """Whether embeddings are multiplied by √width."""
    whole: float = field(default=0.0, metadata={"at_least": 0, "at_most": 1})
    """Share of the texts whose source is one mask symbol alone, and which are written whole: what
    its score of a text is given."""
    mask: int | None = field(default=None, metadata={"at_least": 0})
    """Id of the symbol that hides; the tokeniser's own where none is given."""
    opening: tuple[int, ...] = ()
    """Ids that the decoder is given first; the start symbol where none are given."""
    source_start: bool = True
    """Whether a source begins with the start symbol."""


@dataclass(frozen=True, kw_only=True)
class PostNormConfig(DenoisingConfig):
    """Settings of one whose layers are BERT's, as those of BART and PALM are."""

    pre_norm: bool = False
    """Norm before each sublayer, and one at the end; else after each."""
    embedding_norm: bool = True
    """Whether a norm stands after the embedding."""


def make_spelling(config: DenoisingConfig, vocabulary: Vocabulary) -> Spelling:
    return Spelling.of(
        vocabulary,
        mask=config.mask,
        opening=config.opening,
        source_start=config.source_start,
    )


def make_sentences(vocabulary: Vocabulary) -> Sentences:
    """What cuts texts into sentences; in contiguous text the end of a line ends one too."""
    return Sentences(() if vocabulary.end is None else (vocabulary.end,))


def make_backbone(config: DenoisingConfig, tokens: nn.Embedding) -> EncoderDecoder:
    return make_encoder_decoder(
        config,
        tokens,
        decoder_layers=config.decoder_layers or None,
        scaled=config.scaled,
    )


def make_reading_writing(
    config: DenoisingConfig, tokens: nn.Embedding, vocabulary: Vocabulary, *, copies: bool
) -> ReadingWriting:
    """The same where both ends are asked, with a pointer to the source where words are copied."""
    made = make_backbone(config, tokens)
    if not copies:
        return ReadingWriting(made.encoder, made.decoder)
    pointer = Pointer(config.width)
    initialise(pointer, config.width)
    return Copying(made.encoder, made.decoder, pointer, vocabulary)


def make_restoring(
    config: DenoisingConfig,
    vocabulary: Vocabulary,
    objective: HiddenSource,
    *,
    kind: type[Restoring] = Restoring,
    tokens: nn.Embedding | None = None,
    backbone: EncoderDecoder | None = None,
) -> Restoring:
    """The system and its window; a backbone that is given stands on the given tokens."""
    tokens = tokens or make_tokens(config, vocabulary)
    backbone = backbone or make_backbone(config, tokens)
    system = (Continuing if isinstance(backbone, Copying) else kind)(
        vocabulary=vocabulary,
        backbone=backbone,
        emission=make_softmax(config, vocabulary, tokens, bias=True),
        objective=objective,
    )
    # The encoder reads a whole text with its symbols, the decoder all but the last of them.
    system.window = config.length - max(1, len(config.opening) - 1)
    return system
