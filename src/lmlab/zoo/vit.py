"""Vision Transformer (ViT): image patches as tokens, and a class token that predicts the label.

    p(label | image) = softmax(W h_<s>),  h = Transformer([e(<s>); E x_1 … E x_P])

A label is a text of one word conditioned on the image: p(text | image) is exact. The start token is
the class token; it and the patches attend to each other. Later tokens attend to the image and
causally to the text, so captions can be learned too; without images it is a language model with an
empty image. `lmlab train vit --data digits` uses the numbers of the corpus as pixels; any corpus of
pairs can bring its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import nn

from lmlab.backbones.transformer import Transformer
from lmlab.backbones.vision_transformer import VisionTransformer
from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.readers import Example
from lmlab.models.seq2seq import ImageToTextLM
from lmlab.objectives.conditional_lm import ImageConditionalLM
from lmlab.objectives.sampled_losses import NextTokenLossConfig
from lmlab.zoo import _transformer as parts
from lmlab.zoo._transformer_config import TransformerConfig, make_sizes

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
"""An image of the corpus digits, for figures without scikit-learn."""


@dataclass(frozen=True, kw_only=True)
class VisionTransformerConfig(TransformerConfig):
    """Settings of the Vision Transformer."""

    width: int = field(default=48, metadata={"at_least": 1})
    """Hidden size."""
    layers: int = field(default=3, metadata={"at_least": 1})
    """Number of layers."""
    length: int = field(default=16, metadata={"at_least": 2})
    """Maximum text length in tokens, patches not counted."""
    norm_epsilon: float = field(default=1e-6, metadata={"at_least": 0})
    """Epsilon of the norms, added to the variance."""
    tied: bool = False
    """Weight tying: output vectors are the input embeddings."""
    image_size: int = field(default=8, metadata={"at_least": 1})
    """Pixels along each side of an image."""
    patch: int = field(default=2, metadata={"at_least": 1})
    """Pixels along each side of a patch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image_size % self.patch:
            raise UserError(
                f"image_size must be a multiple of patch, got {self.image_size} and {self.patch}."
            )

    @property
    def patches(self) -> int:
        """Patches per image."""
        return (self.image_size // self.patch) ** 2


def make_vit_backbone(
    config: VisionTransformerConfig, vocabulary: Vocabulary, tokens: nn.Embedding
) -> VisionTransformer:
    """Backbone, initialised."""
    # Tokens and patches are embedded before concatenation, so the core embeds no ids.
    joint_config = replace(config, length=config.patches + config.length)
    embedding = parts.make_embedding(joint_config, nn.Identity())
    backbone = VisionTransformer(
        tokens,
        nn.Linear(config.patch**2, tokens.embedding_dim),
        Transformer(embedding, parts.make_stack(config), width=config.width),
        start=vocabulary.bos,
        max_positions=config.length,
    )
    return parts.initialised(config, backbone)


CARD = Card(
    family="transformer",
    kind="exact",
    paper="Dosovitskiy et al. 2021, An Image is Worth 16x16 Words",
    source="002 §3.5.3",
    protocols=("LogProb", "Step", "Encode", "EncodeTokens"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    conditional=True,
    corpus="digits",
    exempt={"source": "it needs an image, and the words of a text are not one"},
    oracle="transformers' ViT with the same weights: tests/parity/test_hf_vit.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(NextTokenLossConfig, VisionTransformerConfig):
    """Settings of the Vision Transformer."""


SIZES = make_sizes(Config, tiny={"patch": 4}, base={"length": 64, "image_size": 224, "patch": 16})
RECIPES = {
    # scikit-learn's digits, 64 images per batch; results in benchmarks/vit.py.
    "digits": {
        "learning_rate": 1e-3,
        "schedule": "cosine",
        "warmup_steps": 100,
        "tokens_per_batch": 64 * 66,
        "weight_decay": 0.05,
        "epochs": 40,
    }
}

EXAMPLE = Example("three", condition=HANDWRITTEN_THREE)
"""Default example for figures, with an image."""


def build(config: Config, vocabulary: Vocabulary) -> ImageToTextLM:
    tokens = parts.make_token_embedding(config, vocabulary)
    return ImageToTextLM(
        vocabulary=vocabulary,
        backbone=make_vit_backbone(config, vocabulary, tokens),
        emission=parts.make_softmax(config, vocabulary, tokens, bias=True),
        objective=ImageConditionalLM(vocabulary, side=config.image_size, patch=config.patch),
    )
