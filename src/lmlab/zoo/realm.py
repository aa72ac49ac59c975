"""REALM: hidden words told from documents that are looked up, and the looking up learnt from it.

    p(y | x) = Σ_{z ∈ top-k} p(y | z, x) p(z | x),   p(z | x) ∝ exp(q(x) · d(z))

What is hidden are names (`salient`), the document that a text came from may not help it, and an
empty one may do as well. All documents are embedded anew every `refresh` steps, sooner at first and
before anything is kept, by default while training goes on (`background`). `--base` is a run of dpr
whose encoders it starts from (the paper's warm start is the inverse cloze task, which dpr learns
from single texts), or one of realm; its sizes are taken where none are given. With
`objective=spans` texts are answers to the question that each is given, words of the documents
found, whose vectors then stay as a masked base has them:
`lmlab train realm --data wordnet-questions --set objective=spans --base RUN`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.weight_init import init_transformer_weights
from lmlab.models.open_qa import (
    OpenQAModel,
    SpanScorer,
)
from lmlab.models.realm import (
    REALM,
    REALMObjective,
)
from lmlab.models.retrieval_base import RetrieverModel
from lmlab.models.retriever_warm_start import initialise_from_base
from lmlab.objectives.masking.mention_units import MentionUnits
from lmlab.objectives.masking.token_masking import (
    IndependentMasking,
    MaskingStrategy,
    MaskReplacement,
    require_mask_token,
)
from lmlab.objectives.masking.whole_word_masking import WordUnits
from lmlab.retrieval.dense_index import IndexKind
from lmlab.retrieval.document_concat import KnowledgeAugmentedEncoder
from lmlab.retrieval.document_memory import DocumentMemory
from lmlab.retrieval.documents import Document, Documents
from lmlab.retrieval.retriever import Retriever
from lmlab.retrieval.salient_span_masking import (
    SalientSpanMasking,
    title_names,
)
from lmlab.zoo._retrieval import (
    RETRIEVER_RECIPES,
    RetrieverConfig,
    make_encoders,
)
from lmlab.zoo._transformer import make_softmax, make_token_embedding, make_transformer


@dataclass(frozen=True, kw_only=True)
class RealmConfig(RetrieverConfig):
    """Settings of REALM; those of a Transformer are both encoders' and the reader's."""

    length: int = field(default=128, metadata={"at_least": 4})
    """The longest text or question that it takes."""
    document_length: int = field(default=32, metadata={"at_least": 4})
    """Tokens of a document that are read at most, its symbols counted."""
    retrieved: int = field(default=4, metadata={"at_least": 0})
    """Documents that are looked up for a text, k; 0 for none, to compare with."""
    index: IndexKind = "flat"
    """How they are found: flat compares all vectors; ivf and hnsw, by FAISS, some of them, for
    documents by the hundred thousand."""
    refresh: int = field(default=500, metadata={"at_least": 0})
    """Steps after which all documents are embedded anew, at first sooner (16, 32, 64 …); 0 for at
    the first step alone. What is measured and kept is always embedded by its own weights."""
    background_refresh: bool = True
    """Whether that is done while training goes on; the index then comes half of `refresh` later."""
    document_encoder: Literal["auto", "learnt", "fixed"] = "auto"
    """Whether the documents' encoder learns; fixed, documents are embedded once. auto: fixed by
    spans from a masked run, as in the paper, else learnt."""
    objective: Literal["masked", "spans"] = "masked"
    """masked: hidden words of single texts; spans: answers to questions, found in documents."""
    rate: float = field(default=0.15, metadata={"at_least": 0, "below": 1})
    """Share of the names (or tokens) that are hidden, at least one of a text."""
    salient_spans: bool = True
    """Whether names are hidden, those of the documents' titles; else any token."""
    max_answer_length: int = field(default=4, metadata={"at_least": 1})
    """Tokens of an answer at most, where objective=spans; pieces, where words are cut in pieces."""
    early_candidates: int = field(default=64, metadata={"at_least": 1})
    """Documents among which the retriever is told those that hold the answer."""

    # The reader's positions are those of a text and a document.
    inherited_from_base = RetrieverConfig.inherited_from_base | {"document_length"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective == "spans" and not self.retrieved:
            raise UserError("answers are words of documents, and retrieved is 0; give at least 1.")


TINY: dict[str, Any] = {
    "width": 16,
    "layers": 2,
    "heads": 2,
    "vector_width": 8,
    "pre_norm": True,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "document_length": 16,
    "retrieved": 2,
    "refresh": 2,
}
"""What tests build."""
LARGE: dict[str, Any] = {
    "width": 768,
    "layers": 12,
    "heads": 12,
    "length": 288,
    "document_length": 288,
    "retrieved": 8,
    "shared_encoders": "nothing",
}
"""The paper's size."""
PLACEHOLDER_DOCUMENTS = Documents([Document(name="nothing", text="nothing")])
"""Of a base that is built again only to be taken apart."""


def make_realm(
    config: RealmConfig,
    vocabulary: Vocabulary,
    documents: Documents | None,
    base: System | None,
) -> RetrieverModel:
    """A retriever, a reader and what they learn from; a base's weights to begin with."""
    make = make_masked_realm if config.objective == "masked" else make_open_qa
    system = make(config, vocabulary, documents or PLACEHOLDER_DOCUMENTS)
    system.window = config.length - 1
    if base is not None:
        initialise_from_base(system, base)
    pretrained = config.objective == "spans" and isinstance(base, REALM)
    if config.document_encoder == "fixed" or (config.document_encoder == "auto" and pretrained):
        system.retriever.freeze_document_encoder()
    return system


def make_retriever(config: RealmConfig, vocabulary: Vocabulary, documents: Documents) -> Retriever:
    """Both encoders and the documents."""
    longest = max(config.length, config.document_length)
    questions, encoder = make_encoders(replace(config, length=longest), vocabulary)
    memory = DocumentMemory(
        documents,
        vocabulary,
        width=questions.width,
        longest=config.document_length,
        kind=config.index,
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


def make_masked_realm(config: RealmConfig, vocabulary: Vocabulary, documents: Documents) -> REALM:
    """REALM as it is pre-trained."""
    require_mask_token(vocabulary)
    settings = reader_config(config)
    tokens = make_token_embedding(settings, vocabulary)
    reader = make_transformer(settings, tokens)
    choice: MaskingStrategy = IndependentMasking(config.rate)
    mentions = None
    if config.salient_spans:
        mentions = MentionUnits(partial(title_names, documents), WordUnits(vocabulary))
        choice = SalientSpanMasking(mentions, config.rate)
    objective = REALMObjective(
        vocabulary,
        choice,
        MaskReplacement(vocabulary=vocabulary, mask=1.0, random=0.0),
        units=mentions,
    )
    return REALM(
        vocabulary=vocabulary,
        backbone=KnowledgeAugmentedEncoder(reader, make_retriever(config, vocabulary, documents)),
        emission=make_softmax(settings, vocabulary, tokens, bias=True, head=True),
        objective=objective,
    )


def make_open_qa(config: RealmConfig, vocabulary: Vocabulary, documents: Documents) -> OpenQAModel:
    """REALM as it is put to open questions."""
    settings = reader_config(config)
    reader = make_transformer(settings, make_token_embedding(settings, vocabulary))
    spans = SpanScorer(config.width, longest=config.max_answer_length)
    init_transformer_weights(spans, config.width)
    return OpenQAModel(
        vocabulary=vocabulary,
        backbone=KnowledgeAugmentedEncoder(reader, make_retriever(config, vocabulary, documents)),
        spans=spans,
        early=config.early_candidates,
    )


def reader_config(config: RealmConfig) -> RealmConfig:
    """Of what reads a text and a document after it."""
    return replace(config, length=config.length + config.document_length - 1, segments=2)


CARD = Card(
    family="retrieval",
    kind="pseudo",
    paper="Guu et al. 2020, REALM; Lee et al. 2019 (warm start)",
    source="004 §1.3.2",
    protocols=("LogProb", "Fill", "Encode", "EncodeQueries", "Retrieve", "Ask"),
    objectives=("masked", "spans"),
    needs=("base", "documents"),
    default_memories={"documents": "wordnet"},
    conditional=True,
    corpus="wordnet",
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it gives single tokens given all the others, and no way to draw a text",
        "source": "hidden words are those of single texts: only objective=spans is given questions",
    },
    oracle="the sum over all documents by loops, and its gradient: tests/parity/test_realm.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(RealmConfig):
    """Settings of REALM."""


SIZES = {"tiny": Config(**TINY), "small": Config(), "base": Config(**LARGE)}
RECIPES = RETRIEVER_RECIPES


def build(
    config: Config,
    vocabulary: Vocabulary,
    *,
    documents: Documents | None = None,
    base: System | None = None,
) -> RetrieverModel:
    return make_realm(config, vocabulary, documents, base)
