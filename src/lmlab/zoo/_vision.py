"""What the Vision Transformer is put together from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import nn

from lmlab.backbones.transformer import Transformer
from lmlab.backbones.vision import VisionTransformer
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.initialising import initialise
from lmlab.zoo._transformer import TransformerConfig, make_embedding, make_stack

HANDWRITTEN_THREE = """
0 0 7 15 13 1 0 0
0 8 13 6 15 4 0 0
0 2 1 13 13 0 0 0
0 0 2 15 11 1 0 0
0 0 0 1 12 12 1 0
0 0 0 0 1 10 8 0
0 0 8 4 5 14 9 0
0 0 7 13 13 9 0 0
"""
"""An image of the corpus digits, for pictures where scikit-learn is not installed."""


@dataclass(frozen=True, kw_only=True)
class VisionConfig(TransformerConfig):
    """Settings of the Vision Transformer."""

    width: int = field(default=48, metadata={"at_least": 1})
    """Numbers in a hidden state."""
    layers: int = field(default=3, metadata={"at_least": 1})
    """Blocks stacked on each other."""
    length: int = field(default=16, metadata={"at_least": 2})
    """The longest text that it takes at once, beside the patches."""
    norm_epsilon: float = field(default=1e-6, metadata={"at_least": 0})
    """What norms add to the variance."""
    tied: bool = False
    """Whether the output vectors are the input embeddings."""
    side: int = field(default=8, metadata={"at_least": 1})
    """Pixels along each side of an image."""
    patch: int = field(default=2, metadata={"at_least": 1})
    """Pixels along each side of a patch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side % self.patch:
            raise UserError(
                f"an image of side {self.side} can't be cut into patches of side {self.patch}; "
                "give a divisor."
            )

    @property
    def patches(self) -> int:
        """How many an image has."""
        return (self.side // self.patch) ** 2


def make_vision(
    config: VisionConfig, vocabulary: Vocabulary, tokens: nn.Embedding
) -> VisionTransformer:
    """The backbone with its first weights."""
    # Tokens and patches are vectors before they are joined, so the core embeds no ids.
    places = replace(config, length=config.patches + config.length)
    embedding = make_embedding(places, nn.Identity())
    backbone = VisionTransformer(
        tokens,
        nn.Linear(config.patch**2, tokens.embedding_dim),
        Transformer(embedding, make_stack(config), width=config.width),
        start=vocabulary.opening,
    )
    initialise(backbone, config.width, layers=config.layers if config.pre_norm else 0)
    return backbone
