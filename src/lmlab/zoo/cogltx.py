"""CogLTX: BERT for long texts; a judge selects relevant blocks (MemRecall) for a reasoner.

    z⁺ = the best blocks by judge(z) = sigmoid(MLP(BERT(z))); answer = reasoner(z⁺)

As a language model it is BERT. `lmlab finetune` makes two copies: a judge that recalls blocks into
a working memory and a reasoner that does the task on them, unless --long selects another strategy.
Blocks are added until the next one does not fit. Relevance is binary as in the paper; the authors'
program has several levels.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from lmlab.core.card import Card
from lmlab.core.memrecall_config import MemRecallConfig, check_memrecall_config
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.masked_lm import BERT
from lmlab.zoo._masked_lm import SentencePairConfig, build_masked_lm
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, make_sizes

CARD = Card(
    family="transformer",
    kind="pseudo",
    paper="Ding et al. 2020, CogLTX: Applying BERT to Long Texts",
    source="004 §1.3.2.1",
    protocols=("LogProb", "Fill", "Logits", "Encode", "EncodeTokens"),
    objectives=("masked", "nce", "importance", "sampled-softmax"),
    corpus="capitals-annotated",
    example_commands=(
        "lmlab finetune RUN --task span --data capitals-long --judge labels --out RUN-long",
        "lmlab finetune RUN --task span --data capitals-long --long head --out RUN-cut",
    ),
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it predicts single tokens given all the others, and can't sample a text",
    },
    oracle="cuts by brute force, MemRecall and interventions by hand: tests/parity/test_cogltx.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(SentencePairConfig, MemRecallConfig):
    """Settings of CogLTX."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_memrecall_config(self)


SIZES = make_sizes(Config, tiny={"width": 12})
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> BERT:
    settings = {spec.name: getattr(config, spec.name) for spec in fields(MemRecallConfig)}
    return build_masked_lm(config, vocabulary, memrecall=MemRecallConfig(**settings))
