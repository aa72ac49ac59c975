"""SpanBERT: masked LM with span masking and a span boundary objective (SBO).

    loss = -Σ_{t masked} log p(s_t | h_t) + log p(s_t | h_before, h_behind, position in the span)

Span lengths are geometric with p = 0.2, clipped at ten words: 3.8 on average. A span is masked,
replaced or kept as a whole. No sentence pairs: one text, or a segment of it, at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.readers import Example
from lmlab.models.masked_lm import BERT
from lmlab.objectives.masking.span_masking import SpanMasking, geometric_lengths
from lmlab.objectives.masking.whole_word_masking import WordUnits
from lmlab.zoo._masked_lm import MaskedLMConfig, build_masked_lm
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, make_sizes

CARD = Card(
    family="transformer",
    kind="pseudo",
    paper="Joshi et al. 2020, SpanBERT",
    source="004 §1.3.3",
    protocols=("LogProb", "Fill", "Logits", "Encode", "EncodeTokens"),
    objectives=("masked", "nce", "importance", "sampled-softmax"),
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it predicts single tokens given all the others, and can't sample a text",
    },
    oracle=(
        "the distribution of spans by chi-square: tests/unit/objectives/test_token_masking.py; the "
        "boundaries alone are seen, by perturbation: tests/unit/objectives/test_span_boundary.py"
    ),
)


@dataclass(frozen=True, kw_only=True)
class Config(MaskedLMConfig):
    """Settings of SpanBERT."""

    masking: Literal["static", "dynamic"] = "dynamic"
    """static: reuse a few masks per text in all epochs; dynamic: sample a new mask every time."""
    stop: float = field(default=0.2, metadata={"above": 0, "below": 1})
    """p of the geometric distribution of span lengths."""
    max_span_length: int = field(default=10, metadata={"at_least": 1})
    """Maximum span length in words."""
    sbo_positions: int = field(default=20, metadata={"at_least": 0})
    """Position embeddings of the span boundary objective; 0 for no SBO."""


SIZES = make_sizes(Config)
RECIPES = TRANSFORMER_RECIPES

EXAMPLE = Example("the cat sat on the mat . it was warm , so it slept there .")
"""Long enough for a span of several words."""


def build(config: Config, vocabulary: Vocabulary) -> BERT:
    words, lengths = WordUnits(vocabulary), geometric_lengths(config.stop, config.max_span_length)
    masking = SpanMasking(units=words, rate=config.rate, lengths=lengths)
    return build_masked_lm(
        config,
        vocabulary,
        masking,
        units=words,
        spans_together=True,
        sbo_positions=config.sbo_positions,
    )
