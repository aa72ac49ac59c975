"""UniLM: masked LM under four attention masks, so that one network encodes and generates.

    loss = -Σ_{t masked} log p(s_t | what its mask shows to t);  p(s) = Π_t p(s_t | s_<t)

Bidirectional ⅓, sequence-to-sequence ⅓, left-to-right ⅙, right-to-left ⅙, marked by segment ids. It
fills masks bidirectionally and generates left to right, predicting each token at a <mask>; with a
source, sequence-to-sequence. Unlike in the paper, pre-training can mask the end token too, so that
it learns where a text ends; and there is no next-sentence prediction.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.unilm import UniLM
from lmlab.objectives.unified_lm import SEGMENT_COUNT, NgramMasking, UniLMObjective
from lmlab.zoo._transformer import make_softmax, make_token_embedding, make_transformer
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, PostNormConfig, make_sizes

CARD = Card(
    family="transformer",
    kind="exact",
    paper="Dong et al. 2019, Unified Language Model Pre-training for Understanding and Generation",
    source="004 §1.3.1",
    protocols=("LogProb", "Step", "Fill", "Logits", "Encode", "EncodeTokens"),
    objectives=("four-masks",),
    conditional=True,
    exempt={"fill": "it fills in both ways and scores left to right: two distributions, not one"},
    oracle=(
        "the attention mask of each mode, by perturbation: tests/unit/objectives/test_unified_lm.py"
    ),
)


@dataclass(frozen=True, kw_only=True)
class Config(PostNormConfig):
    """Settings of UniLM."""

    rate: float = field(default=0.15, metadata={"at_least": 0, "below": 1})
    """Masking rate: share of the tokens that are masked and predicted."""
    target_rate: float = field(default=0.7, metadata={"above": 0, "at_most": 1})
    """Masking rate of the target when fine-tuning on pairs."""
    shares: tuple[float, ...] = (1 / 3, 1 / 3, 1 / 6, 1 / 6)
    """Shares of the masks: bidirectional, seq2seq, left-to-right, right-to-left."""


# Pre-norm: with post-norm the tests' learning rate would be too high.
SIZES = make_sizes(Config, tiny={"pre_norm": True})
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> UniLM:
    tokens = make_token_embedding(config, vocabulary)
    return UniLM(
        vocabulary=vocabulary,
        backbone=make_transformer(replace(config, segments=SEGMENT_COUNT), tokens),
        emission=make_softmax(config, vocabulary, tokens, bias=True, head=True),
        objective=UniLMObjective(
            vocabulary,
            NgramMasking(rate=config.rate),
            shares=config.shares,
            target_rate=config.target_rate,
            max_length=config.length,
        ),
    )
