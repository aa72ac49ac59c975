"""REALM: masked LM with a latent retrieved document, learned retriever; also open-domain QA.

    p(y | x) = Σ_{z ∈ top-k} p(y | z, x) p(z | x),   p(z | x) ∝ exp(q(x) · d(z))

Salient spans (names) are masked (`salient_spans`), a text's own document is excluded, and a null
document is a candidate. The index is rebuilt every `refresh` steps, more often at first and before
checkpoints, by default asynchronously (`background_refresh`). `--base` is a run of dpr that
initialises the encoders (the paper's warm start is the inverse cloze task, which dpr learns from
single texts), or one of realm; its sizes are the defaults. With `objective=spans` it is fine-tuned
for open-domain QA: texts are answers, extracted as spans of retrieved documents, whose vectors stay
fixed if the base is a masked one:
`lmlab train realm --data wordnet-questions --set objective=spans --base RUN`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.weight_init import init_transformer_weights
from lmlab.models.dual_encoder import initialise_from_base
from lmlab.models.open_qa import OpenQAModel, SpanScorer
from lmlab.models.realm import REALM, REALMObjective
from lmlab.models.retrieval_base import RetrieverModel
from lmlab.objectives.masking.mention_units import MentionUnits
from lmlab.objectives.masking.token_masking import (
    IndependentMasking,
    MaskingStrategy,
    MaskReplacement,
    require_mask_token,
)
from lmlab.objectives.masking.whole_word_masking import WordUnits
from lmlab.retrieval.document_concat import KnowledgeAugmentedEncoder
from lmlab.retrieval.document_memory import DocumentMemory
from lmlab.retrieval.documents import Document, Documents
from lmlab.retrieval.index_options import IndexKind
from lmlab.retrieval.retriever import Retriever
from lmlab.retrieval.salient_span_masking import SalientSpanMasking, title_names
from lmlab.zoo._retrieval import RETRIEVER_RECIPES, RETRIEVER_TINY, RetrieverConfig, make_encoders
from lmlab.zoo._transformer import make_softmax, make_token_embedding, make_transformer

PLACEHOLDER_DOCUMENTS = Documents([Document(name="nothing", text="nothing")])
"""Placeholder when a base is rebuilt only for its weights."""

CARD = Card(
    family="retrieval",
    kind="pseudo",
    paper="Guu et al. 2020, REALM; Lee et al. 2019 (warm start)",
    source="004 §1.3.2",
    protocols=("LogProb", "Fill", "Encode", "EncodeQueries", "Retrieve", "Ask"),
    objectives=("masked", "spans"),
    needs=("base", "documents"),
    initialised_by_own_runs=True,
    default_memories={"documents": "wordnet"},
    conditional=True,
    corpus="wordnet",
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it predicts single tokens given all the others, and can't sample a text",
        "source": (
            "masked words are predicted in single texts: only objective=spans takes questions"
        ),
    },
    oracle="the sum over all documents by loops, and its gradient: tests/parity/test_realm.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(RetrieverConfig):
    """Settings of REALM; Transformer settings apply to both encoders and the reader."""

    length: int = field(default=128, metadata={"at_least": 4})
    """Maximum length of a text or question."""
    document_length: int = field(default=32, metadata={"at_least": 4})
    """Maximum tokens of a document, special tokens included."""
    title_separator: bool = False
    """Separate title and body of a document by </s>, as in the paper; else by a colon."""
    retrieved: int = field(default=4, metadata={"at_least": 0})
    """k, documents retrieved per text; 0 for a baseline without retrieval."""
    index: IndexKind = "flat"
    """Index type: flat is exact search; ivf and hnsw (FAISS) are approximate, for hundreds of
    thousands of documents."""
    refresh: int = field(default=500, metadata={"at_least": 0})
    """Steps between index rebuilds, fewer at first (16, 32, 64 …); 0 for the first step only.
    Evaluation and checkpoints always use an up-to-date index."""
    background_refresh: bool = True
    """Rebuild the index asynchronously; it then arrives half of `refresh` later."""
    document_encoder: Literal["auto", "learnt", "fixed"] = "auto"
    """learnt: train the document encoder; fixed: freeze it and embed documents once; auto: fixed
    for objective=spans from a masked run, as in the paper, else learnt."""
    objective: Literal["masked", "spans"] = "masked"
    """masked: masked language modelling; spans: extractive open-domain QA."""
    rate: float = field(default=0.15, metadata={"at_least": 0, "below": 1})
    """Masking rate of salient spans (or tokens), at least one per text."""
    salient_spans: bool = True
    """Salient span masking: mask names from document titles; else any token."""
    max_answer_length: int = field(default=4, metadata={"at_least": 1})
    """Maximum tokens (subwords) of an answer, for objective=spans."""
    early_candidates: int = field(default=64, metadata={"at_least": 1})
    """Candidate documents of the retriever's early loss, which rewards those with the answer."""

    @property
    def inherited_from_base(self) -> frozenset[str]:
        # The reader has positions for a text and a document.
        return super().inherited_from_base | {"document_length"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective == "spans" and not self.retrieved:
            raise UserError("retrieved must be at least 1 for objective=spans, got 0.")


SIZES = {
    "tiny": Config(
        **RETRIEVER_TINY | {"width": 16, "layers": 2}, document_length=16, retrieved=2, refresh=2
    ),
    "small": Config(),
    # As in the paper.
    "base": Config(
        width=768,
        layers=12,
        heads=12,
        length=288,
        document_length=288,
        retrieved=8,
        shared_encoders="nothing",
    ),
}
RECIPES = RETRIEVER_RECIPES


def build(
    config: Config,
    vocabulary: Vocabulary,
    *,
    documents: Documents | None = None,
    base: System | None = None,
) -> RetrieverModel:
    make = make_masked_realm if config.objective == "masked" else make_open_qa
    system = make(config, vocabulary, documents or PLACEHOLDER_DOCUMENTS)
    if base is not None:
        initialise_from_base(system, base)
    pretrained = config.objective == "spans" and isinstance(base, REALM)
    if config.document_encoder == "fixed" or (config.document_encoder == "auto" and pretrained):
        system.retriever.freeze_document_encoder()
    return system


def make_retriever(config: Config, vocabulary: Vocabulary, documents: Documents) -> Retriever:
    """Bi-encoder with the document index."""
    max_length = max(config.length, config.document_length)
    questions, encoder = make_encoders(replace(config, length=max_length), vocabulary)
    memory = DocumentMemory(
        documents,
        vocabulary,
        width=questions.width,
        max_document_length=config.document_length,
        kind=config.index,
        title_separator=config.title_separator,
    )
    return Retriever(
        questions,
        encoder,
        memory,
        retrieved=config.retrieved,
        refresh=config.refresh,
        background=config.background_refresh,
        null=config.objective == "masked",
    )


def make_masked_realm(config: Config, vocabulary: Vocabulary, documents: Documents) -> REALM:
    """REALM for masked pre-training."""
    require_mask_token(vocabulary)
    settings = reader_config(config)
    tokens = make_token_embedding(settings, vocabulary)
    reader = make_transformer(settings, tokens)
    masking: MaskingStrategy = IndependentMasking(config.rate)
    mentions = None
    if config.salient_spans:
        mentions = MentionUnits(partial(title_names, documents), WordUnits(vocabulary))
        masking = SalientSpanMasking(mentions, config.rate)
    objective = REALMObjective(
        vocabulary,
        masking,
        MaskReplacement(vocabulary=vocabulary, mask=1.0, random=0.0),
        units=mentions,
    )
    return REALM(
        vocabulary=vocabulary,
        backbone=KnowledgeAugmentedEncoder(reader, make_retriever(config, vocabulary, documents)),
        emission=make_softmax(settings, vocabulary, tokens, bias=True, head=True),
        objective=objective,
    )


def make_open_qa(config: Config, vocabulary: Vocabulary, documents: Documents) -> OpenQAModel:
    """REALM for open-domain question answering."""
    settings = reader_config(config)
    reader = make_transformer(settings, make_token_embedding(settings, vocabulary))
    spans = SpanScorer(config.width, max_span_length=config.max_answer_length)
    init_transformer_weights(spans, config.width)
    return OpenQAModel(
        vocabulary=vocabulary,
        backbone=KnowledgeAugmentedEncoder(reader, make_retriever(config, vocabulary, documents)),
        spans=spans,
        early=config.early_candidates,
    )


def reader_config(config: Config) -> Config:
    """Settings of the reader, whose input is a text followed by a document."""
    return replace(config, length=config.length + config.document_length - 1, segments=2)
