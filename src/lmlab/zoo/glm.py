"""GLM: autoregressive blank infilling; spans are removed and generated left to right.

    loss = -Σ_spans Σ_j log p(s_j | text with blanks, spans before, s_<j);  p(s) = p(s | <mask>)

The corrupted text is encoded bidirectionally. Spans of Poisson(3) tokens cover 15 % of the text, or
one span 50 to 100 %; the order of the spans is shuffled. Positions are 2D: the blank's position in
the text, and the position in the span, so the length of a blank is unknown. Unconditional
generation is one blank; so is classification, with a word as label:
`lmlab fill RUN "… it was <mask>" --among good --among bad`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.glm import GLM, with_unpredictable_token
from lmlab.objectives.blank_infilling import BlankInfilling, LongSpan, PoissonSpans, SpanMixture
from lmlab.zoo import _transformer_config as parts
from lmlab.zoo._transformer import make_softmax, make_token_embedding, make_transformer

CARD = Card(
    family="transformer",
    kind="exact",
    paper="Du et al. 2022, GLM: General Language Model Pretraining with Autoregressive Blank "
    "Infilling",
    source="004 §1.3.1",
    protocols=("LogProb", "Step", "Encode", "EncodeTokens", "Infill"),
    objectives=("blank-infilling",),
    conditional=True,
    oracle=(
        "a view worked by hand, the attention mask by perturbation, the distributions of spans: "
        "tests/unit/objectives/test_blank_infilling.py"
    ),
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.TransformerConfig):
    """Settings of GLM."""

    two_dimensional_positions = True
    positions: parts.PositionName = "pairs"
    """pairs: 2D positions, in the text and in the blank."""
    rate: float = field(default=0.15, metadata={"above": 0, "below": 1})
    """Masking rate of short spans."""
    mean: float = field(default=3.0, metadata={"above": 0, "at_most": 100})
    """Mean of the zero-truncated Poisson distribution of their lengths."""
    long_span_rate: float = field(default=0.5, metadata={"at_least": 0, "at_most": 1})
    """Probability of masking one long span instead."""
    long_span_min_share: float = field(default=0.5, metadata={"above": 0, "at_most": 1})
    """Minimum share of the text in a long span; the maximum is all."""
    shuffled: bool = True
    """Generate spans in random order; else from left to right."""

    needs_dense_attention = "all tokens of a blank share its position, so no window bounds them"


SIZES = parts.make_sizes(Config)
RECIPES = parts.TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> GLM:
    start, extended = vocabulary.size, vocabulary.extended(1)
    tokens = make_token_embedding(config, extended)
    short = PoissonSpans(rate=config.rate, mean=config.mean)
    long = LongSpan(min_share=config.long_span_min_share)
    spans = SpanMixture(first=short, second=long, second_probability=config.long_span_rate)
    return GLM(
        vocabulary=vocabulary,
        backbone=make_transformer(config, tokens),
        emission=with_unpredictable_token(make_softmax(config, extended, tokens, bias=True), start),
        objective=BlankInfilling(
            vocabulary, spans, start=start, max_length=config.length, shuffled=config.shuffled
        ),
    )
