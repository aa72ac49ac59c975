"""KnowBERT: entity linking and knowledge attention inserted into a pre-trained BERT.

    ψ_mk = MLP(p_mk, s_m · e_mk);  s'_m = s_m + Σ_k softmax_k(ψ_m) e_mk
    H' = MLP(MultiHeadAttn(H W₁, S', S')) W₂ + H;  loss = masked + linking

Mentions, candidates and priors come from a lexicon of the knowledge base's aliases, entity
embeddings from its facts, glosses or both. Several knowledge bases (--knowledge A+B) are inserted
after different layers (KnowBert-W+W), each with a linker of its own; all linkers are trained at
once, not one after the other. They are trained first with the rest frozen, then everything. BERT's
next-sentence prediction is left out: inputs are single texts.
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
from lmlab.knowledge.joined_knowledge import split_knowledge
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
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES

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
        "sample": "it predicts single tokens given all the others, and can't sample a text",
    },
    oracle="every step and both losses by hand: tests/parity/test_knowbert.py",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of KnowBERT; the encoder is the base's."""

    entity_width: int = field(default=128, metadata={"at_least": 1})
    """Size of entity and mention vectors."""
    heads: int = field(default=4, metadata={"at_least": 1})
    """Attention heads, among mentions and from words to mentions."""
    knowledge_layers: tuple[int, ...] = ()
    """Layers of the base after which knowledge is inserted, one for each knowledge base; empty for
    two thirds of the depth, and the next layers for others."""
    candidates: int = field(default=30, metadata={"at_least": 1})
    """Maximum candidate entities per mention, by prior."""
    entities: Literal["graph", "glosses", "both"] = "both"
    """Source of entity embeddings: facts (graph), titles and descriptions (glosses), or both."""
    linking: Literal["softmax", "margin"] = "softmax"
    """Linking loss: softmax, cross-entropy of the true entity; margin, hinge loss of scores
    around 0."""
    threshold: float = field(default=0.0, metadata={"at_least": -5, "at_most": 5})
    """Score below which candidates are ignored, for linking=margin; softmax scores are only
    relative, so there all candidates count."""
    margin: float = field(default=0.2, metadata={"at_least": 0})
    """Margin of the hinge loss, for linking=margin."""
    linking_weight: float = field(default=1.0, metadata={"at_least": 0})
    """Weight of a linked mention relative to a masked token."""
    linking_steps: int = field(default=500, metadata={"at_least": 0})
    """Initial steps in which only the entity linker is trained."""
    rate: float = field(default=0.15, metadata={"at_least": 0, "below": 1})
    """Masking rate: share of the tokens that are masked and predicted."""
    dropout: float = field(default=0.1, metadata={"at_least": 0, "below": 1})
    """Dropout rate of the knowledge attention output."""

    def __post_init__(self) -> None:
        if self.entity_width % self.heads:
            raise UserError(
                f"entity_width must be a multiple of heads ({self.heads}), got {self.entity_width}."
            )
        if self.linking != "margin":
            self._check_without_margin()

    def _check_without_margin(self) -> None:
        """Settings of linking=margin must be at their defaults otherwise."""
        for name in ("threshold", "margin"):
            value, default = getattr(self, name), getattr(type(self), name)
            if value != default:
                raise UserError(
                    f"{name}={value:g} does not apply to linking={self.linking}; remove it, or "
                    "use linking=margin."
                )


SIZES = {
    "tiny": Config(entity_width=8, heads=2, linking_steps=0, dropout=0.0),
    "small": Config(),
    "base": Config(entity_width=200, linking_steps=5000),
}
RECIPES = TRANSFORMER_RECIPES


def build(
    config: Config, vocabulary: Vocabulary, base: System, knowledge: KnowledgeBase
) -> KnowBERT:
    copied, encoder = copy_encoder(base)
    layers = len(encoder.stack.blocks) * encoder.stack.times
    parts = dict(
        zip(insertion_layers(config, layers, knowledge), split_knowledge(knowledge), strict=True)
    )
    memories = {
        layer: make_knowledge_attention(config, encoder, part.knowledge)
        for layer, part in parts.items()
    }
    backbone = MemoryTransformer(encoder.embedding, encoder.stack, memories, width=encoder.width)
    require_mask_token(vocabulary)
    linking_loss: LinkingLoss = (
        MarginLinkingLoss(config.margin) if config.linking == "margin" else SoftmaxLinkingLoss()
    )
    objective = EntityLinkingMLM(
        vocabulary,
        IndependentMasking(config.rate),
        MaskReplacement(vocabulary=vocabulary),
        lexicons={
            layer: EntityLexicon(
                part.knowledge,
                WordUnits(vocabulary),
                max_candidates=config.candidates,
                first_entity=part.first,
            )
            for layer, part in parts.items()
        },
        linking=linking_loss,
        weight=config.linking_weight,
        linking_steps=config.linking_steps,
        base_positions=copied.objective.extra_positions,
    )
    return KnowBERT(
        vocabulary=vocabulary,
        backbone=backbone,
        emission=copied.emission,
        objective=objective,
        knowledge=knowledge,
    )


def insertion_layers(config: Config, layers: int, knowledge: KnowledgeBase) -> tuple[int, ...]:
    """The layer of the base, of so many, after which each knowledge base is inserted."""
    count = max(1, len(knowledge.sources))
    chosen = config.knowledge_layers
    if not chosen:
        first = max(1, min(round(layers * 2 / 3), layers + 1 - count))
        chosen = tuple(range(first, first + count))
    if len(chosen) != count:
        raise UserError(
            f"knowledge_layers must have one layer for each knowledge base ({count}), got "
            f"{len(chosen)}."
        )
    if len(set(chosen)) < count:
        raise UserError("knowledge_layers must be different layers, got one twice.")
    if not 1 <= min(chosen) <= max(chosen) <= layers:
        raise UserError(
            f"knowledge_layers must be between 1 and {layers}, the number of layers of the base, "
            f"got {max(chosen) if max(chosen) > layers else min(chosen)}."
        )
    return chosen


def copy_encoder(base: System) -> tuple[BERT, Transformer]:
    """Copy of a trained masked LM, and its encoder; a UserError for other systems."""
    if not isinstance(base, BERT) or not isinstance(base.backbone, Transformer):
        raise UserError(
            "knowbert needs a masked language model as its base, and this run is not one; give "
            "a run of bert or a similar model."
        )
    copied = deepcopy(base)
    assert isinstance(copied.backbone, Transformer)
    return copied, copied.backbone


def make_knowledge_attention(
    config: Config, encoder: Transformer, knowledge: KnowledgeBase
) -> KnowledgeAttention:
    """Knowledge attention layer with embeddings of all entities."""
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
