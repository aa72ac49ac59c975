"""Facts as Experts (FaE): masked LM with an entity memory and a fact memory, editable untrained.

    β = softmax over facts of (W_a [subject ‖ relation]) · (W_v x);   λ = β of the null fact
    p(entity) = softmax(E (λ W_c x + Σ β · objects));   loss = EaE's + facts + answers

A fact has a key (subject, relation) and a set of objects, built from the entity embeddings, so a
fact added to the memory or changed there takes effect at once. x is the last hidden state at a
masked mention. In training the target is a fact whose subject is in the text and one of whose
objects is masked, else the null fact. As in the paper, but the retrieved objects are also added to
the hidden states, which helps word prediction.
"""

from __future__ import annotations

from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.knowledge.knowledge_base import KnowledgeBase
from lmlab.knowledge.memory_layers import FactMemory
from lmlab.models.entity_memory import FactsAsExperts
from lmlab.objectives.masking.token_masking import require_mask_token
from lmlab.zoo import _entity_memory as parts

CARD = Card(
    family="memory",
    kind="pseudo",
    paper="Verga et al. 2020, Facts as Experts: Adaptable and Interpretable Neural Memory",
    source="004 §1.3.2",
    protocols=("LogProb", "Fill", "Logits", "Encode", "EncodeTokens", "Ask", "Link"),
    objectives=("masked",),
    needs=("knowledge",),
    default_memories={"knowledge": "capitals-annotated"},
    corpus="capitals-annotated",
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it predicts single tokens given all the others, and can't sample a text",
    },
    oracle="the memory by loops over facts, facts edited and answered: tests/parity/test_fae.py",
)

Config = parts.EntityConfig
SIZES = parts.ENTITY_SIZES
RECIPES = parts.ENTITY_RECIPES


def build(config: Config, vocabulary: Vocabulary, *, knowledge: KnowledgeBase) -> FactsAsExperts:
    if not knowledge.facts:
        raise UserError("a fact memory needs knowledge with facts, and this has none.")
    entities = parts.make_entity_embedding(config, knowledge)
    facts = FactMemory(
        entities,
        len(knowledge.relations),
        knowledge.objects,
        config.width,
        mask=require_mask_token(vocabulary),
        top_k=config.top_k,
    )
    return parts.make_entity_model(FactsAsExperts, config, vocabulary, knowledge, entities, facts)
