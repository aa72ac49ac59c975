"""CogQA: a reader that hops from paragraph to paragraph and reasons on the graph of its hops.

    X' = σ(X W₂ + σ((A D⁻¹)ᵀ σ(X W₁)))

By itself it is a BERT, pre-trained as one. What makes it CogQA is `lmlab finetune RUN --task hops`,
for which it carries the settings: the run becomes system 1, which points at next hops and answers
in a paragraph, and a graph network is put over what it finds (system 2). Any run with token vectors
can be put to that task.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.cogqa_config import CogQAConfig
from lmlab.models.masked_lm import BERT
from lmlab.objectives.masking.token_masking import IndependentMasking
from lmlab.zoo._masked_lm import (
    SentencePairConfig,
    build_masked_lm,
)
from lmlab.zoo._transformer import TRANSFORMER_RECIPES

CARD = Card(
    family="transformer",
    kind="pseudo",
    paper="Ding et al. 2019, Cognitive Graph for Multi-Hop Reading Comprehension at Scale",
    source="004 §1.3.2",
    protocols=("LogProb", "Fill", "Logits", "Encode", "EncodeTokens"),
    objectives=("masked", "nce", "importance", "sampled-softmax"),
    corpus="wordnet",
    example_commands=(
        "lmlab finetune RUN --task hops --data wordnet-hops --out RUN-hops",
        'lmlab ask RUN-hops "what is the kind of the kind of the member of pinguinus ?" '
        "--show-evidence",
    ),
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it gives single tokens given all the others, and no way to draw a text",
    },
    oracle="graph update, pointers and labels by hand: tests/parity/test_cogqa.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(CogQAConfig, SentencePairConfig):
    """Settings of CogQA: those of BERT, and those of its two systems."""


SIZES = {
    # As long as the small one: the texts of WordNet have up to 113 tokens.
    "tiny": Config(width=12, layers=2, heads=2, length=128, dropout=0.0, attention_dropout=0.0),
    "small": Config(),
    "base": Config(width=768, layers=12, heads=12, length=512),
}
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> BERT:
    return build_masked_lm(config, vocabulary, IndependentMasking(config.rate))
