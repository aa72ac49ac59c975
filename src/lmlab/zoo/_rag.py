"""What both RAG systems share: their settings and how they are put together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from lmlab.backbones.encoder_decoder import TransformerEncoderDecoder
from lmlab.backbones.pointer_encoder_decoder import PointerEncoderDecoder
from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.pointer import Pointer
from lmlab.layers.weight_init import init_transformer_weights
from lmlab.models.pointer_generator import PointerGenerator
from lmlab.models.rag import RAG
from lmlab.models.seq2seq import EncoderDecoderLM
from lmlab.objectives.conditional_lm import ConditionalLM
from lmlab.objectives.document_marginalisation import DocumentMarginal
from lmlab.retrieval.bi_encoders import BiEncoder, RandomProjectionBM25, TrainedBiEncoder
from lmlab.retrieval.dense_index import IndexKind
from lmlab.retrieval.document_memory import DocumentMemory
from lmlab.retrieval.documents import Documents
from lmlab.zoo._transformer import (
    DecoderConfig,
    PositionName,
    make_encoder_decoder,
    make_softmax,
    make_token_embedding,
)


@dataclass(frozen=True, kw_only=True)
class RagConfig(DecoderConfig):
    """Settings of RAG; those of a Transformer are the writer's."""

    width: int = field(default=128, metadata={"at_least": 1})
    """Numbers in a hidden state."""
    layers: int = field(default=2, metadata={"at_least": 1})
    """Blocks of the encoder."""
    decoder_layers: int = field(default=0, metadata={"at_least": 0})
    """Blocks of the decoder; 0 for as many as the encoder has."""
    positions: PositionName = "rotary"
    """learned, sinusoidal, concatenated, pairs, buckets (T5), shaw, nezha, transformer-xl, alibi,
    rotary or none. A document stands behind its question, however long that is: told by distances
    (rotary), its words are copied far sooner than by learned places, which BART has."""
    retrieved: int = field(default=5, metadata={"at_least": 1})
    """Documents that are looked up for a question, K."""
    index: IndexKind = "flat"
    """How they are found: flat compares all vectors; ivf and hnsw, by FAISS, some of them, for
    documents by the hundred thousand."""
    document_length: int = field(default=48, metadata={"at_least": 3})
    """Tokens of a document that are read at most, with its symbols; its question has the rest of
    the length."""
    retriever_width: int = field(default=512, metadata={"at_least": 1})
    """Numbers in the vectors of documents and questions, where no base brings its own; untrained,
    the right one of 186 documents on capitals comes first for 594 of 596 questions at 512, for 537
    at 256 and for 424 at 128."""
    question_encoder: Literal["learnt", "fixed"] = "learnt"
    """Whether the questions' encoder learns with the writer, as in the paper, or stays as it is: a
    writer that begins from nothing needs steps that spoil a trained encoder."""
    copy_mechanism: bool = True
    """Whether the writer may copy words of what it reads (See et al. 2017). BART, from which the
    paper starts, has learnt to copy from its pre-training; a small writer has not."""


TINY: dict[str, Any] = {
    "width": 16,
    "layers": 1,
    "heads": 2,
    "length": 64,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "retrieved": 2,
    "document_length": 16,
    "retriever_width": 32,
}
"""What tests build."""
LARGE: dict[str, Any] = {
    "width": 768,
    "layers": 6,
    "heads": 12,
    "length": 512,
    "document_length": 256,
    "positions": "learned",
}
"""A writer of BART's base size."""


def make_rag(
    config: RagConfig,
    vocabulary: Vocabulary,
    documents: Documents,
    base: System | None,
    marginal: DocumentMarginal,
) -> RAG:
    """A writer, and the trained retriever or one of words alone, under one of the two sums."""
    if config.document_length > config.length - 2:
        raise UserError(
            f"length={config.length} leaves no room for a question beside "
            f"document_length={config.document_length}; give a longer one by --set length=…"
        )
    retriever: BiEncoder = (
        RandomProjectionBM25(vocabulary, config.retriever_width)
        if base is None
        else TrainedBiEncoder(base)
    )
    retriever.check_length(config.document_length)
    if config.question_encoder == "fixed":
        retriever.freeze()
    return RAG(
        vocabulary=vocabulary,
        writer=make_rag_generator(config, vocabulary),
        retriever=retriever,
        memory=DocumentMemory(
            documents,
            vocabulary,
            width=retriever.width,
            longest=config.document_length,
            kind=config.index,
        ),
        marginal=marginal,
        retrieved=config.retrieved,
    )


def make_rag_generator(config: RagConfig, vocabulary: Vocabulary) -> EncoderDecoderLM:
    """An encoder-decoder, which may copy."""
    tokens = make_token_embedding(config, vocabulary)
    backbone = make_encoder_decoder(config, tokens, decoder_layers=config.decoder_layers or None)
    kind: type[EncoderDecoderLM] = EncoderDecoderLM
    if config.copy_mechanism:
        kind, backbone = PointerGenerator, make_pointer_generator(config, backbone, vocabulary)
    writer = kind(
        vocabulary=vocabulary,
        backbone=backbone,
        emission=make_softmax(config, vocabulary, tokens, bias=True),
        objective=ConditionalLM(vocabulary),
    )
    # A source is read as a whole, with its start and its end.
    writer.window = config.length - 1
    return writer


def make_pointer_generator(
    config: RagConfig, backbone: TransformerEncoderDecoder, vocabulary: Vocabulary
) -> TransformerEncoderDecoder:
    pointer = Pointer(config.width)
    init_transformer_weights(pointer, config.width)
    return PointerEncoderDecoder(backbone.encoder, backbone.decoder, pointer, vocabulary)
