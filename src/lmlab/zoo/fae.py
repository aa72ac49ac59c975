"""Facts as Experts (FaE): EaE with a fact memory that can be edited without training.

    β = softmax over facts of (W_a [subject ‖ relation]) · (W_v x);   λ = β of the null fact
    p(entity) = softmax(E (λ W_c x + Σ β · objects));   loss = EaE's + facts + answers

A fact has a key (subject, relation) and a set of objects, built from the entity embeddings, so a
fact added to the memory or changed there takes effect at once. x is the last hidden state at a
masked mention. In training the target is a fact whose subject is in the text and one of whose
objects is masked, else the null fact. As in the paper, but the retrieved objects are also added to
the hidden states, which helps word prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.knowledge.knowledge_base import KnowledgeBase
from lmlab.models.entity_memory import FactsAsExperts
from lmlab.zoo._entity_memory import ENTITY_RECIPES, EntityConfig, build_fae

CARD = Card(
    family="memory",
    kind="pseudo",
    paper="Verga et al. 2020, Facts as Experts: Adaptable and Interpretable Neural Memory",
    source="004 §1.3.2",
    protocols=("LogProb", "Fill", "Logits", "Encode", "EncodeTokens", "Ask", "Link"),
    objectives=("masked",),
    needs=("knowledge",),
    default_memories={"knowledge": "capitals-told"},
    corpus="capitals-told",
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it predicts single tokens given all the others, and can't sample a text",
    },
    oracle="the memory by loops over facts, facts edited and answered: tests/parity/test_fae.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(EntityConfig):
    """Settings of FaE."""


SIZES = {
    # Pre-norm, which trains at the test suite's learning rate.
    "tiny": Config(
        width=12, layers=2, heads=2, length=64, pre_norm=True, dropout=0.0, attention_dropout=0.0
    ),
    "small": Config(width=128, layers=6),
    "base": Config(width=768, layers=12, heads=12, length=512, entity_width=256),
}
RECIPES = ENTITY_RECIPES


def build(config: Config, vocabulary: Vocabulary, *, knowledge: KnowledgeBase) -> FactsAsExperts:
    return build_fae(config, vocabulary, knowledge)
