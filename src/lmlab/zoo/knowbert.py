"""KnowBERT: entities linked inside a trained BERT, and read by all of its words.

    ψ_mk = MLP(p_mk, s_m · e_mk);  s'_m = s_m + Σ_k softmax_k(ψ_m) e_mk
    H' = MLP(MultiHeadAttn(H W₁, S', S')) W₂ + H;  loss = masked + linking

Mentions, their candidates and priors come from a lexicon of the knowledge's aliases, vectors of
entities from its facts, its glosses or both. The linker is trained first with all else frozen, then
everything. Next sentences, which BERT is also trained on, are left out: texts are single ones.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from lmlab.backbones.memory_transformer import MemoryTransformer
from lmlab.backbones.transformer import Transformer
from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.knowledge.entity_embeddings import EntityEmbeddings
from lmlab.knowledge.entity_lexicon import EntityLexicon
from lmlab.knowledge.knowledge_attention import KnowledgeAttention
from lmlab.knowledge.knowledge_base import KnowledgeBase
from lmlab.models.knowbert import KnowBERT
from lmlab.models.masked_lm import BERT
from lmlab.objectives.entity_linking_loss import (
    EntityLinkingMLM,
    LinkingLoss,
    MarginLinkingLoss,
    SoftmaxLinkingLoss,
)
from lmlab.objectives.masking.token_masking import (
    IndependentMasking,
    MaskReplacement,
    require_mask_token,
)
from lmlab.objectives.masking.whole_word_masking import WordUnits
from lmlab.zoo._transformer import TRANSFORMER_RECIPES


@dataclass(frozen=True, kw_only=True)
class KnowingConfig:
    """Settings of a masked model with linked entities."""

    entity_width: int = field(default=128, metadata={"at_least": 1})
    """Numbers in the vector of an entity and of a mention."""
    heads: int = field(default=4, metadata={"at_least": 1})
    """Attention functions side by side, among mentions and from words to mentions."""
    knowledge_layer: int = field(default=0, metadata={"at_least": 0})
    """The layer of the base after which knowledge comes in; 0 for two thirds of the way up."""
    candidates: int = field(default=30, metadata={"at_least": 1})
    """Most entities that a mention is weighed between, those it names most often."""
    entities: Literal["graph", "glosses", "both"] = "both"
    """Where the vectors of entities come from: facts, titles and descriptions, or both."""
    linking: Literal["softmax", "margin"] = "softmax"
    """What the linker loses: softmax, minus the log-probability of the true entity; margin, what
    scores lack to be well above or below 0."""
    threshold: float = field(default=0.0, metadata={"at_least": -5, "at_most": 5})
    """Candidates that score less count for nothing, where linking is by margin; softmax's scores
    mean something beside each other only, so there all count."""
    margin: float = field(default=0.2, metadata={"at_least": 0})
    """How far above or below 0 scores are to be, where linking is by margin."""
    linking_weight: float = field(default=1.0, metadata={"at_least": 0})
    """What a linked mention counts beside a hidden token."""
    linking_steps: int = field(default=500, metadata={"at_least": 0})
    """Steps in which the linker alone is trained."""
    rate: float = field(default=0.15, metadata={"at_least": 0, "below": 1})
    """Share of the tokens that are hidden and predicted."""
    dropout: float = field(default=0.1, metadata={"at_least": 0, "below": 1})
    """Share of what words read of entities set to zero in training."""

    def __post_init__(self) -> None:
        if self.entity_width % self.heads:
            raise UserError(
                f"entity_width {self.entity_width} can't be shared among {self.heads} heads; give "
                "a multiple."
            )
        if self.linking != "margin":
            self._check_without_margin()

    def _check_without_margin(self) -> None:
        """What only linking by margin reads must be as it is where nobody says."""
        for name in ("threshold", "margin"):
            given, usual = getattr(self, name), getattr(type(self), name)
            if given != usual:
                raise UserError(
                    f"linking={self.linking} has no use for {name}, and {name}={given:g} came; "
                    "leave it out, or give linking=margin."
                )


def insert_knowledge(
    config: KnowingConfig, vocabulary: Vocabulary, base: System, knowledge: KnowledgeBase
) -> KnowBERT:
    """A copy of a trained masked model with knowledge after one of its layers."""
    copied, encoder = copy_encoder(base)
    layers = len(encoder.stack.blocks) * encoder.stack.times
    if config.knowledge_layer > layers:
        raise UserError(
            f"the base has {layers} layers, and after is {config.knowledge_layer}; give one."
        )
    memory = make_knowledge_attention(config, encoder, knowledge)
    memories = {config.knowledge_layer or max(1, round(layers * 2 / 3)): memory}
    backbone = MemoryTransformer(encoder.embedding, encoder.stack, memories, width=encoder.width)
    require_mask_token(vocabulary)
    objective = EntityLinkingMLM(
        vocabulary,
        IndependentMasking(config.rate),
        MaskReplacement(vocabulary=vocabulary),
        lexicon=EntityLexicon(knowledge, WordUnits(vocabulary), most=config.candidates),
        linking=make_linking_loss(config),
        weight=config.linking_weight,
    )
    system = KnowBERT(
        linking_steps=config.linking_steps,
        vocabulary=vocabulary,
        backbone=backbone,
        emission=copied.emission,
        objective=objective,
    )
    system.window = base.window
    return system


def copy_encoder(base: System) -> tuple[BERT, Transformer]:
    """A copy of a trained masked model, and its encoder; a UserError where it is none."""
    if not isinstance(base, BERT) or not isinstance(base.backbone, Transformer):
        raise UserError(
            "knowledge goes between the layers of a masked model, and the base is none; give a run "
            "of bert or its like."
        )
    copied = deepcopy(base)
    assert isinstance(copied.backbone, Transformer)
    return copied, copied.backbone


def make_knowledge_attention(
    config: KnowingConfig, encoder: Transformer, knowledge: KnowledgeBase
) -> KnowledgeAttention:
    """The part between two layers, with vectors for all entities."""
    tokens = encoder.embedding.tokens
    assert isinstance(tokens, nn.Embedding)
    vectors = EntityEmbeddings(
        knowledge, config.entities, config.entity_width, gloss_width=tokens.embedding_dim
    )
    return KnowledgeAttention(
        encoder.width,
        vectors,
        entity_width=config.entity_width,
        heads=config.heads,
        threshold=config.threshold if config.linking == "margin" else None,
        dropout=config.dropout,
    )


def make_linking_loss(config: KnowingConfig) -> LinkingLoss:
    """What the linker loses."""
    return MarginLinkingLoss(config.margin) if config.linking == "margin" else SoftmaxLinkingLoss()


CARD = Card(
    family="memory",
    kind="pseudo",
    paper="Peters et al. 2019, Knowledge Enhanced Contextual Word Representations",
    source="004 §1.3.2",
    protocols=("LogProb", "Fill", "Logits", "Encode", "EncodeTokens", "Link"),
    objectives=("linked-masking",),
    needs=("base", "knowledge"),
    base="bert",
    default_memories={"knowledge": "wordnet-common"},
    corpus="wordnet-senses",
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it gives single tokens given all the others, and no way to draw a text",
    },
    oracle="every step and both losses by hand: tests/parity/test_knowbert.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(KnowingConfig):
    """Settings of KnowBERT; its encoder is its base's."""


SIZES = {
    "tiny": Config(entity_width=8, heads=2, linking_steps=0, dropout=0.0),
    "small": Config(),
    "base": Config(entity_width=200, linking_steps=5000),
}
RECIPES = TRANSFORMER_RECIPES


def build(
    config: Config, vocabulary: Vocabulary, base: System, knowledge: KnowledgeBase
) -> KnowBERT:
    return insert_knowledge(config, vocabulary, base, knowledge)
