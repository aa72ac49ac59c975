"""ERNIE: names and phrases are hidden whole, so that they are known and not spelled.

    loss = -Σ_{t hidden} log p(s_t | what is shown)

Names are those that the corpus tells (JSON lines with `mentions`); in a text that tells none they
come of a lexicon and are found as tokens, the longest first. What is in none is hidden word by
word. Sun et al. 2019 go from tokens to phrases to entities in three stages; here a name counts as
one unit beside words from the start. `positions=nezha` with `reach=64` gives the fixed relative
positions of NEZHA (Wei et al. 2019), which hides words whole as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.readers import Example
from lmlab.models.masked_lm import BERT
from lmlab.objectives.masking.mention_units import MentionUnits
from lmlab.objectives.masking.phrase_lexicons import read_lexicon
from lmlab.objectives.masking.whole_word_masking import (
    WholeWordMasking,
    WordUnits,
)
from lmlab.zoo._masked_lm import (
    MaskedLMConfig,
    build_masked_lm,
)
from lmlab.zoo._transformer import TRANSFORMER_RECIPES

CARD = Card(
    family="transformer",
    kind="pseudo",
    paper="Sun et al. 2019, ERNIE: Enhanced Representation through Knowledge Integration",
    source="004 §1.3.3",
    protocols=("LogProb", "Fill", "Logits", "Encode", "EncodeTokens"),
    objectives=("masked", "nce", "importance", "sampled-softmax"),
    uses_annotated_mentions=True,
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it gives single tokens given all the others, and no way to draw a text",
    },
    oracle="whole mentions only: tests/unit/objectives/test_mentions.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(MaskedLMConfig):
    """Settings of ERNIE."""

    mentions: str = "countries,wordnet"
    """countries, wordnet (lemmas of several words) or a file of one name a line; or several. For
    texts that do not tell their mentions."""


SIZES = {
    "tiny": Config(
        width=12,
        layers=2,
        heads=2,
        length=64,
        dropout=0.0,
        attention_dropout=0.0,
        mentions="countries",
    ),
    "small": Config(),
    "base": Config(width=768, layers=12, heads=12, length=512),
}
RECIPES = {
    **TRANSFORMER_RECIPES,
    "nezha": {**TRANSFORMER_RECIPES["glosses"], "positions": "nezha", "clip_distance": 64},
}

EXAMPLE = Example("ice cream from New Zealand is sold in Paris , where it is hot .")
"""With names and a phrase of the lexicons."""


def build(config: Config, vocabulary: Vocabulary) -> BERT:
    mentions = MentionUnits(partial(read_lexicon, config.mentions), WordUnits(vocabulary))
    return build_masked_lm(
        config, vocabulary, WholeWordMasking(mentions, config.rate), units=mentions
    )
