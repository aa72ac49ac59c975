"""XLNet: permutation language modelling with two-stream attention and segment memory.

    log p(x) = E_z Σ_{t > c} log p(x_{z_t} | x_{z_<t}),  z a uniformly random permutation

The content stream h_{z_t} sees z_≤t; the query stream g_{z_t}, which predicts, knows its position
and sees z_<t. Scores are exact, by the left-to-right order, which training hardly ever samples:
short texts, of which `partial_prediction=6` predicts one token from all the others, teach little of
it; `--recipe sentences` adds it. `--recipe spans` predicts spans of 1 to 5 tokens in two segments,
as the published model was trained.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.two_stream import TwoStreamLM
from lmlab.objectives.permutation_lm import PermutationLM
from lmlab.objectives.sentence_pairs import TwoSegments
from lmlab.zoo import _transformer_config as parts
from lmlab.zoo._transformer import make_softmax, make_token_embedding
from lmlab.zoo._two_stream import check_relative, make_xlnet_backbone

CARD = Card(
    family="transformer",
    kind="exact",
    paper="Yang et al. 2019, XLNet: Generalized Autoregressive Pretraining",
    source="004 §1.3.1",
    protocols=("LogProb", "Step", "Fill", "Encode", "EncodeTokens"),
    objectives=("permutation",),
    exempt={"fill": "it fills in by orders with the blanks last and scores by left to right"},
    oracle="transformers' XLNet with the same weights: tests/parity/test_hf_xlnet.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.TransformerConfig):
    """Settings of XLNet."""

    positions: parts.PositionName = "transformer-xl"
    """Relative positions: transformer-xl, buckets, shaw, alibi or rotary."""
    pre_norm: bool = False
    """Pre-norm: norm before each sublayer and a final one; else post-norm."""
    norm_epsilon: float = field(default=1e-12, metadata={"at_least": 0})
    """Epsilon of the norms, added to the variance."""
    attention_biases: bool = False
    """Whether the linear layers of attention have biases."""
    relative_segments: bool = True
    """Relative segment encodings."""
    partial_prediction: int = field(default=6, metadata={"at_least": 1})
    """K: predict the last 1/K of the tokens in the order; 1 for all."""
    max_span: int = field(default=0, metadata={"at_least": 0})
    """Maximum length of target spans, 5 in the paper; 0 for single positions anywhere."""
    two_segments: bool = False
    """Train on texts split in two segments, half with a second one from another text."""
    left_to_right: float = field(default=0.0, metadata={"at_least": 0, "at_most": 1})
    """Share of the texts fully predicted left to right, the order used for scoring."""
    memory: int = field(default=128, metadata={"at_least": 0})
    """Memory length: cached positions before a segment of contiguous text."""

    needs_dense_attention = "two-stream attention predicts in every order, and a window follows one"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_relative(self.positions)


SIZES = parts.make_sizes(
    Config, tiny={"memory": 16, "partial_prediction": 2, "left_to_right": 0.1}, base={"memory": 384}
)
SENTENCES = {**parts.TRANSFORMER_RECIPES["glosses"], "left_to_right": 0.1}
RECIPES = {
    **parts.TRANSFORMER_RECIPES,
    "sentences": SENTENCES,
    "spans": {**SENTENCES, "max_span": 5, "two_segments": True},
}


def build(config: Config, vocabulary: Vocabulary) -> TwoStreamLM:
    tokens, length = make_token_embedding(config, vocabulary), config.length
    return TwoStreamLM(
        vocabulary=vocabulary,
        backbone=make_xlnet_backbone(config, tokens, config.memory),
        emission=make_softmax(config, vocabulary, tokens, bias=True),
        objective=PermutationLM(
            vocabulary,
            partial_prediction=config.partial_prediction,
            max_span=config.max_span,
            pairs=TwoSegments(vocabulary) if config.two_segments else None,
            left_to_right_rate=config.left_to_right,
            segment_length=length,
        ),
    )
