"""ERNIE (Baidu): masked LM that masks whole entities and phrases, annotated or from a lexicon.

    loss = -Σ_{t masked} log p(s_t | unmasked tokens)

Entities are those annotated in the corpus (JSON lines with `mentions`); in texts without annotation
they are matched against a lexicon, longest first. Other words are masked one by one. Sun et al.
2019 go from tokens to phrases to entities in three stages; here an entity is one masking unit like
a word from the start. `positions=nezha` with `clip_distance=64` gives the fixed relative positions
of NEZHA (Wei et al. 2019), which also uses whole-word masking.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.readers import Example
from lmlab.models.masked_lm import BERT
from lmlab.objectives.masking.mention_units import MentionUnits, read_lexicon
from lmlab.objectives.masking.whole_word_masking import WholeWordMasking, WordUnits
from lmlab.zoo._masked_lm import MaskedLMConfig, build_masked_lm
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, make_sizes

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
        "sample": "it predicts single tokens given all the others, and can't sample a text",
    },
    oracle="whole mentions only: tests/unit/objectives/test_mention_units.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(MaskedLMConfig):
    """Settings of ERNIE."""

    mentions: str = "countries,wordnet"
    """Lexicons for texts without annotated mentions: countries, wordnet (multi-word lemmas) or a
    file with one name per line; comma-separated."""


SIZES = make_sizes(Config, tiny={"width": 12, "mentions": "countries"})
RECIPES = {
    **TRANSFORMER_RECIPES,
    "nezha": {**TRANSFORMER_RECIPES["glosses"], "positions": "nezha", "clip_distance": 64},
}

EXAMPLE = Example("ice cream from New Zealand is sold in Paris , where it is hot .")
"""Contains names and a phrase of the lexicons."""


def build(config: Config, vocabulary: Vocabulary) -> BERT:
    mentions = MentionUnits(partial(read_lexicon, config.mentions), WordUnits(vocabulary))
    return build_masked_lm(
        config, vocabulary, WholeWordMasking(mentions, config.rate), units=mentions
    )
