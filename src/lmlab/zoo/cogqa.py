"""CogQA: multi-hop question answering by a BERT reader (system 1) and a graph network (system 2).

    X' = σ(X W₂ + σ((A D⁻¹)ᵀ σ(X W₁)))

By itself it is a BERT, pre-trained as one. `lmlab finetune RUN --task hops` makes it CogQA, with
the settings here: the run becomes system 1, which extracts next-hop and answer spans from a
paragraph, and a graph network over the extracted nodes is system 2. Any run with token vectors can
be fine-tuned on that task.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.span_pointers import CogQAConfig
from lmlab.models.masked_lm import BERT
from lmlab.zoo._masked_lm import SentencePairConfig, build_masked_lm
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, make_sizes

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
        "sample": "it predicts single tokens given all the others, and can't sample a text",
    },
    oracle="graph update, pointers and labels by hand: tests/parity/test_cogqa.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(CogQAConfig, SentencePairConfig):
    """Settings of CogQA: those of BERT and of systems 1 and 2."""


# length as in small: the texts of WordNet have up to 113 tokens.
SIZES = make_sizes(Config, tiny={"width": 12, "length": 128})
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> BERT:
    return build_masked_lm(config, vocabulary)
