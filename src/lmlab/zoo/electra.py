"""ELECTRA: a small masked model replaces tokens, and a detector says of each whether it was.

    min_{G,D} Σ_{t masked} -log p_G(s_t | masked s) + λ Σ_t -log p_D(ŝ_t = s_t or not | ŝ),  ŝ ~ p_G

Every place teaches the detector, where BERT learns from 15 %. The two share their embeddings. The
detector encodes; log_prob and fill are the generator's, since it alone knows of words.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lmlab.core.card import Card
from lmlab.core.detecting import Detecting
from lmlab.core.filling import Filling
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.detection import Detection
from lmlab.layers.initialising import initialise
from lmlab.layers.input_embedding import InputEmbedding
from lmlab.objectives.masked import MaskedTokens
from lmlab.objectives.masking import EachToken, Replacement
from lmlab.objectives.replaced_tokens import ReplacedTokens
from lmlab.zoo._transformer import (
    TRANSFORMER_RECIPES,
    TransformerConfig,
    make_softmax,
    make_tokens,
    make_transformer,
)

CARD = Card(
    family="transformer",
    kind="pseudo",
    paper="Clark et al. 2020, ELECTRA: Pre-training Text Encoders as Discriminators Rather Than "
    "Generators",
    source="004 §1.3.3",
    protocols=("LogProb", "Fill", "Detect", "Encode"),
    objectives=("replaced-tokens",),
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it gives single tokens given all the others, and no way to draw a text",
    },
    oracle="transformers' ELECTRA, both networks: tests/parity/test_hf_electra.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(TransformerConfig):
    """Settings of ELECTRA; those of a Transformer are the detector's."""

    pre_norm: bool = False
    """Norm before each sublayer, and one at the end; else after each."""
    embedding_norm: bool = True
    """Whether a norm stands after the embedding."""
    norm_epsilon: float = field(default=1e-12, metadata={"at_least": 0})
    """What norms add to the variance."""
    rate: float = field(default=0.15, metadata={"at_least": 0, "below": 1})
    """Share of the tokens that are hidden from the generator."""
    detection_weight: float = field(default=50.0, metadata={"at_least": 0})
    """What the detector's mean loss is multiplied by before the generator's is added."""
    generator_width: int = field(default=0, metadata={"at_least": 0})
    """Numbers in a hidden state of the generator; 0 for a quarter of the detector's."""
    generator_layers: int = field(default=0, metadata={"at_least": 0})
    """Blocks of the generator; 0 for as many as the detector's."""
    generator_heads: int = field(default=0, metadata={"at_least": 0})
    """Heads of the generator; 0 for a quarter of the detector's."""
    generator_inner: int = field(default=0, metadata={"at_least": 0})
    """Units of the generator's feed-forward layers; 0 for four times its width."""

    @property
    def generator(self) -> Config:
        """The settings of the generator: narrower layers over the same embedding."""
        return replace(
            self,
            width=self.generator_width or max(1, self.width // 4),
            layers=self.generator_layers or self.layers,
            heads=self.generator_heads or max(1, self.heads // 4),
            head_width=0,
            inner=self.generator_inner,
            embedding_width=self.embedding_width or self.width,
        )


SIZES = {
    "tiny": Config(
        width=16,
        layers=2,
        heads=2,
        length=64,
        dropout=0.0,
        attention_dropout=0.0,
        generator_width=8,
    ),
    "small": Config(),
    "base": Config(
        width=768, layers=12, heads=12, length=512, generator_width=256, generator_heads=4
    ),
}
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> Detecting:
    tokens = make_tokens(config, vocabulary)
    small, choice = config.generator, EachToken(config.rate)
    # The paper hides all chosen tokens behind <mask>: the detector never sees that symbol.
    replacement = Replacement(vocabulary=vocabulary, mask=1.0, random=0.0)
    writer, detector = make_transformer(small, tokens), make_transformer(config, tokens)
    share_embedding(detector.embedding, writer.embedding)
    generator = Filling(
        vocabulary=vocabulary,
        backbone=writer,
        emission=make_softmax(small, vocabulary, tokens, bias=True, head=True),
        objective=MaskedTokens(vocabulary, choice, replacement),
    )
    detection = Detection(config.width, activation=config.activation)
    initialise(detection, config.width)
    system = Detecting(
        vocabulary=vocabulary,
        backbone=detector,
        emission=detection,
        objective=ReplacedTokens(generator, weight=config.detection_weight),
    )
    system.window = config.length - 1
    return system


def share_embedding(given: InputEmbedding, taken: InputEmbedding) -> None:
    """Let one embedding use the positions, segments and norm of another, but for the widening."""
    taken.positions, taken.segments, taken.norm = given.positions, given.segments, given.norm
