"""KnowBERT: entities linked inside a trained BERT, and read by all of its words.

    ψ_mk = MLP(p_mk, s_m · e_mk);  s'_m = s_m + Σ_k softmax_k(ψ_m) e_mk
    H' = MLP(MultiHeadAttn(H W₁, S', S')) W₂ + H;  loss = masked + linking

Mentions, their candidates and priors come from a lexicon of the knowledge's aliases, vectors of
entities from its facts, its glosses or both. The linker is trained first with all else frozen, then
everything. Next sentences, which BERT is also trained on, are left out: texts are single ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmlab.core.card import Card
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.knowledge.knowledge import Knowledge
from lmlab.objectives.linked_masking import LinkedModel
from lmlab.zoo._knowing import KnowingConfig, insert_knowledge
from lmlab.zoo._transformer import TRANSFORMER_RECIPES

CARD = Card(
    family="memory",
    kind="pseudo",
    paper="Peters et al. 2019, Knowledge Enhanced Contextual Word Representations",
    source="004 §1.3.2",
    protocols=("LogProb", "Fill", "Logits", "Encode", "EncodeTokens", "Link"),
    objectives=("linked-masking",),
    needs=("base", "knowledge"),
    base="bert",
    tries={"knowledge": "wordnet-common"},
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
    config: Config, vocabulary: Vocabulary, base: System, knowledge: Knowledge
) -> LinkedModel:
    return insert_knowledge(config, vocabulary, base, knowledge)
