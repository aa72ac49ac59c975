"""Retrieval-augmented generation (RAG-Sequence, RAG-Token): shared settings and builders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.rag import RAG
from lmlab.models.seq2seq import EncoderDecoderLM, PointerGenerator
from lmlab.objectives.conditional_lm import ConditionalLM
from lmlab.objectives.document_marginalisation import DocumentMarginal
from lmlab.retrieval.bi_encoders import BiEncoder, RandomProjectionBM25, TrainedBiEncoder
from lmlab.retrieval.document_memory import DocumentMemory
from lmlab.retrieval.documents import Documents
from lmlab.retrieval.index_options import IndexKind
from lmlab.zoo._transformer import (
    add_pointer,
    make_encoder_decoder,
    make_softmax,
    make_token_embedding,
)
from lmlab.zoo._transformer_config import DecoderConfig, PositionName, make_sizes


@dataclass(frozen=True, kw_only=True)
class RagConfig(DecoderConfig):
    """Settings of RAG; Transformer settings apply to the generator."""

    width: int = field(default=128, metadata={"at_least": 1})
    """Hidden size."""
    layers: int = field(default=2, metadata={"at_least": 1})
    """Encoder layers."""
    decoder_layers: int = field(default=0, metadata={"at_least": 0})
    """Decoder layers; 0 for as many as the encoder has."""
    positions: PositionName = "rotary"
    """learned, sinusoidal, concatenated, pairs, buckets (T5), shaw, nezha, transformer-xl, alibi,
    rotary or none. A document follows a question of any length: with relative positions (rotary)
    copying is learned far sooner than with BART's learned absolute positions."""
    retrieved: int = field(default=5, metadata={"at_least": 1})
    """K, documents retrieved per question."""
    index: IndexKind = "flat"
    """Index type: flat is exact search; ivf and hnsw (FAISS) are approximate, for hundreds of
    thousands of documents."""
    document_length: int = field(default=48, metadata={"at_least": 3})
    """Maximum tokens of a document, special tokens included; the question has the rest of
    length."""
    retriever_width: int = field(default=512, metadata={"at_least": 1})
    """Size of document and question vectors without a base. Untrained, on 186 documents on
    capitals, top-1 accuracy is 594 of 596 questions at 512, 537 at 256 and 424 at 128."""
    question_encoder: Literal["learnt", "fixed"] = "learnt"
    """learnt: train the question encoder with the generator, as in the paper; fixed: freeze it, as
    the learning rate of a generator trained from scratch spoils a trained encoder."""
    copy_mechanism: bool = True
    """Whether the generator can copy source tokens (pointer-generator, See et al. 2017). BART, the
    paper's generator, learned copying in pre-training; a small generator has not."""


RAG_SIZES = make_sizes(
    RagConfig,
    tiny={"layers": 1, "retrieved": 2, "document_length": 16, "retriever_width": 32},
    # A generator of BART-base size.
    base={"layers": 6, "document_length": 256, "positions": "learned"},
)


def make_rag(
    config: RagConfig,
    vocabulary: Vocabulary,
    documents: Documents,
    base: System | None,
    marginal: DocumentMarginal,
) -> RAG:
    """Generator, trained or BM25-like retriever, and marginalisation over documents."""
    if config.document_length > config.length - 2:
        raise UserError(
            f"length={config.length} leaves no room for a question with "
            f"document_length={config.document_length}; use a larger --set length=…"
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
        generator=make_rag_generator(config, vocabulary),
        retriever=retriever,
        memory=DocumentMemory(
            documents,
            vocabulary,
            width=retriever.width,
            max_document_length=config.document_length,
            kind=config.index,
        ),
        marginal=marginal,
        retrieved=config.retrieved,
    )


def make_rag_generator(config: RagConfig, vocabulary: Vocabulary) -> EncoderDecoderLM:
    """Encoder-decoder, optionally a pointer-generator."""
    tokens = make_token_embedding(config, vocabulary)
    backbone = make_encoder_decoder(config, tokens, decoder_layers=config.decoder_layers or None)
    kind: type[EncoderDecoderLM] = EncoderDecoderLM
    if config.copy_mechanism:
        kind = PointerGenerator
        backbone = add_pointer(backbone, vocabulary)
    return kind(
        vocabulary=vocabulary,
        backbone=backbone,
        emission=make_softmax(config, vocabulary, tokens, bias=True),
        objective=ConditionalLM(vocabulary),
    )
