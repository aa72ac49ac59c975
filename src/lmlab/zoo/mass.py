"""MASS: masked sequence-to-sequence pre-training; the decoder generates one masked span.

    -Σ_{t=u}^{v} log p(s_t | s_u … s_{t-1}, text with s_u … s_v masked)

The span is half of the text. The decoder sees only the earlier tokens of the span, so it must
attend to the encoder. `tokens=1` is BERT's limit, `share=1` a language model's. A corpus of pairs
gives sources. log_prob conditions on a single mask: poor after spans alone, unless
`full_mask_rate` is set. A span of as many masks as tokens is filled by its joint distribution; with
`blank_rate` it also learns spans of any length at a single mask, which the paper has not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.mass import MASS
from lmlab.objectives.denoising_base import DenoisingSpecialTokens
from lmlab.objectives.masked_span import ContiguousSpan, MASSObjective
from lmlab.objectives.masking.token_masking import MaskReplacement
from lmlab.zoo._transformer import make_encoder_decoder, make_softmax, make_token_embedding
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, EncoderDecoderConfig, make_sizes

CARD = Card(
    family="transformer",
    kind="exact",
    paper="Song et al. 2019, MASS: Masked Sequence to Sequence Pre-training",
    source="004 §1.3.1.2",
    protocols=("LogProb", "Step", "JointFill", "Infill", "Encode", "EncodeTokens"),
    objectives=("masked-span",),
    conditional=True,
    oracle="both limits of its span: tests/unit/objectives/test_masked_span.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(EncoderDecoderConfig):
    """Settings of MASS."""

    pre_norm: bool = False
    """Pre-norm: norm before each sublayer and a final one; else post-norm."""
    share: float = field(default=0.5, metadata={"above": 0, "at_most": 1})
    """Share of a text's tokens in the span; 1 gives a language model."""
    tokens: int = field(default=0, metadata={"at_least": 0})
    """Span length in tokens; 0 to use `share`, 1 for BERT's limit."""
    full_mask_rate: float = field(default=0.0, metadata={"at_least": 0, "at_most": 1})
    """Share of the texts generated whole from a single mask, as log_prob needs."""
    blank_rate: float = field(default=0.0, metadata={"at_least": 0, "at_most": 1})
    """Share of the texts with a span of any length at one mask, generated with its end."""
    masked: float = field(default=0.8, metadata={"at_least": 0, "at_most": 1})
    """Share of the span's tokens masked in the encoder input."""
    random_rate: float = field(default=0.1, metadata={"at_least": 0, "at_most": 1})
    """Share of them replaced by random tokens; the rest is unchanged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.full_mask_rate + self.blank_rate > 1:
            raise UserError(
                "full_mask_rate and blank_rate must sum to at most 1, got "
                f"{self.full_mask_rate:g} and {self.blank_rate:g}."
            )


SIZES = make_sizes(
    Config,
    # All targets are masked, so that tests can check that none leaks.
    tiny={"heads": 4, "full_mask_rate": 0.5, "blank_rate": 0.2, "masked": 0.9},
    base={"width": 1024, "layers": 6, "heads": 16},
)
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> MASS:
    tokens = make_token_embedding(config, vocabulary)
    span = ContiguousSpan(span_share=config.share, tokens=config.tokens)
    replacement = MaskReplacement(
        vocabulary=vocabulary, mask=config.masked, random=config.random_rate
    )
    return MASS(
        vocabulary=vocabulary,
        backbone=make_encoder_decoder(config, tokens, shared=config.tied_encoder_decoder),
        emission=make_softmax(config, vocabulary, tokens, bias=True),
        objective=MASSObjective(
            DenoisingSpecialTokens.from_vocabulary(vocabulary),
            span,
            replacement,
            full_mask_rate=config.full_mask_rate,
            blank_rate=config.blank_rate,
        ),
    )
