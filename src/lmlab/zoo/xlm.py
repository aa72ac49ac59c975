"""XLM: masked language modelling of two languages, and of pairs of translations as one input.

    loss = -Σ_{t masked} log p(s_t | unmasked tokens of the sentence, or of both sentences)

Each token has an embedding of its language, positions start again in the second sentence, and both
languages share a vocabulary. A corpus of pairs trains on pairs and on single sides, by
`translation_share`; a corpus of texts on these alone. Unlike in the paper, an input is one
sentence, not a stream of 256 tokens, and a pair is <s> x </s> <s> y </s> with lmlab's own special
tokens; frequent tokens are not masked less often, and languages not resampled.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from lmlab.core.card import Card
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.xlm import XLM
from lmlab.objectives.masking.token_masking import IndependentMasking, MaskReplacement
from lmlab.objectives.translation_lm import TEXT_LANGUAGE, TranslationLM
from lmlab.zoo._transformer import make_softmax, make_token_embedding, make_transformer
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, BERTEncoderConfig, make_sizes

CARD = Card(
    family="transformer",
    kind="pseudo",
    paper="Lample and Conneau 2019, Cross-lingual Language Model Pretraining",
    source="004 §1.4",
    protocols=("LogProb", "Fill", "Logits", "Encode", "EncodeTokens", "Multilingual"),
    objectives=("masked-translation",),
    conditional=True,
    exempt={
        "distribution": "a sum of conditionals that need not come from one joint distribution",
        "sample": "it predicts single tokens given all the others, and can't sample a text",
    },
    example_commands=(
        "lmlab encode RUN --language text --text 'a dog' --pooling mean --out vectors.npz",
    ),
    oracle="transformers' XLM with the same weights: tests/parity/test_hf_xlm.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(BERTEncoderConfig):
    """Settings of XLM."""

    rate: float = field(default=0.15, metadata={"at_least": 0, "below": 1})
    """Masking rate: share of the tokens that are masked and predicted."""
    translation_share: float = field(default=0.5, metadata={"at_least": 0, "at_most": 1})
    """Share of pairs that are one input (TLM); of the others one side is (MLM)."""
    languages: tuple[str, ...] = ("source", "text")
    """Names of the languages: of the sources of pairs, of their texts, and any others."""
    language: str = ""
    """Language of texts without a source; that of the texts of pairs if empty."""

    needs_dense_attention: ClassVar[str] = "the two sentences of a pair attend to each other"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.languages)) < max(2, len(self.languages)):
            raise UserError(
                "languages must be at least two different names, as in languages=de,en, got "
                f"{','.join(self.languages)}."
            )
        if self.language and self.language not in self.languages:
            raise unknown_name("language", self.language, self.languages)


SIZES = make_sizes(Config, base={"width": 1024, "layers": 12, "heads": 8})
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> XLM:
    tokens = make_token_embedding(config, vocabulary)
    objective = TranslationLM(
        vocabulary,
        IndependentMasking(config.rate),
        MaskReplacement(vocabulary=vocabulary),
        translation_share=config.translation_share,
        language=(config.languages.index(config.language) if config.language else TEXT_LANGUAGE),
    )
    return XLM(
        vocabulary=vocabulary,
        backbone=make_transformer(replace(config, segments=len(config.languages)), tokens),
        emission=make_softmax(config, vocabulary, tokens, bias=True),
        objective=objective,
        languages=config.languages,
    )
