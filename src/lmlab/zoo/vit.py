"""Vision Transformer: patches of an image as words, and a class token that says what it shows.

    p(label | image) = softmax(W h_<s>),  h = Transformer([e(<s>); E x_1 … E x_P])

A label is a text of one word, and the image is what it is given: p(text | image) is exact like a
translator's. The start symbol is the class token; it and the patches see each other. Words after
the first see the image and those before them, so longer texts (captions) can be learned too, and
without images it is a language model beside an empty one. `lmlab train vit --data digits` reads the
numbers that the corpus gives as pixels; another corpus of pairs may bring its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmlab.core.card import Card
from lmlab.core.seeing import Seeing
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.readers import Example
from lmlab.objectives.given_image import NextTokenGivenImage
from lmlab.zoo._sampled import SampledConfig
from lmlab.zoo._transformer import make_softmax, make_tokens
from lmlab.zoo._vision import HANDWRITTEN_THREE, VisionConfig, make_vision

CARD = Card(
    family="transformer",
    kind="exact",
    paper="Dosovitskiy et al. 2021, An Image is Worth 16x16 Words",
    source="002 §3.5.3",
    protocols=("LogProb", "Step", "Encode", "EncodeTokens"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    conditional=True,
    corpus="digits",
    exempt={"source": "it is given an image, and the words of a text make none"},
    oracle="transformers' ViT with the same weights: tests/parity/test_hf_vit.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(SampledConfig, VisionConfig):
    """Settings of the Vision Transformer."""


SIZES = {
    "tiny": Config(
        width=16, layers=2, heads=2, length=64, patch=4, dropout=0.0, attention_dropout=0.0
    ),
    "small": Config(),
    "base": Config(width=768, layers=12, heads=12, length=64, side=224, patch=16),
}
RECIPES = {
    # scikit-learn's digits, 64 images a batch: benchmarks/vit.py has what it reaches.
    "digits": {
        "learning_rate": 1e-3,
        "schedule": "cosine",
        "warmup_steps": 100,
        "tokens_per_batch": 64 * 66,
        "weight_decay": 0.05,
        "epochs": 40,
    },
}

EXAMPLE = Example("three", condition=HANDWRITTEN_THREE)
"""What is drawn of it unless told otherwise: words make no image."""


def build(config: Config, vocabulary: Vocabulary) -> Seeing:
    tokens = make_tokens(config, vocabulary)
    system = Seeing(
        vocabulary=vocabulary,
        backbone=make_vision(config, vocabulary, tokens),
        emission=make_softmax(config, vocabulary, tokens, bias=True),
        objective=NextTokenGivenImage(vocabulary, side=config.side, patch=config.patch),
    )
    system.window = config.length
    return system
