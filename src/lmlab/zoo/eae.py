"""Entities as Experts (EaE): a masked LM with an entity memory queried at each mention.

    X¹ = Transformer(l₀ layers), X³ = LayerNorm(X¹ + EntityMemory(X¹)), X⁴ = Transformer(l₁ layers)
    loss = masked words + mention detection + entity linking, by the memory and by X⁴

The memory returns entity embeddings weighted by attention from the mention's two end positions, and
changes the first position only. l₀ : l₁ is 1 : 2, as 4 : 8. One fifth of the mentions is masked as
a whole; mentions come from the corpus in training, from mention detection at inference.
"""

from __future__ import annotations

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.knowledge.knowledge_base import KnowledgeBase
from lmlab.knowledge.memory_layers import EntityPrediction
from lmlab.models.entity_memory import EntitiesAsExperts
from lmlab.zoo import _entity_memory as parts

CARD = Card(
    family="memory",
    kind="pseudo",
    paper="Févry et al. 2020, Entities as Experts: Sparse Memory Access with Entity Supervision",
    source="004 §1.3.2",
    protocols=("LogProb", "Fill", "Logits", "Encode", "EncodeTokens", "Ask", "Link"),
    objectives=("masked",),
    needs=("knowledge",),
    default_memories={"knowledge": "capitals"},
    corpus="capitals-annotated",
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it predicts single tokens given all the others, and can't sample a text",
    },
    oracle="the memory by loops over entities, tags by hand: tests/parity/test_eae.py",
)

Config = parts.EntityConfig
SIZES = parts.ENTITY_SIZES
RECIPES = parts.ENTITY_RECIPES


def build(config: Config, vocabulary: Vocabulary, *, knowledge: KnowledgeBase) -> EntitiesAsExperts:
    entities = parts.make_entity_embedding(config, knowledge)
    prediction = EntityPrediction(entities, config.width)
    return parts.make_entity_model(
        EntitiesAsExperts, config, vocabulary, knowledge, entities, prediction
    )
