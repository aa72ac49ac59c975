"""PALM: pre-train an encoder by masked LM, then an encoder-decoder to continue the text.

    stage one: q(s_t | masked s) at the encoder;  stage two: p(s_>c | masked s_≤c), c = 0.8 T

15 % of the encoder's tokens are masked as in BERT; the decoder can copy source tokens by a pointer
network (`copy_mechanism`). Stage two trains both on the continuation only, as in the paper; `joint`
adds stage one's loss. A text's score is p(s | <mask>), the text continuing a single mask: exact,
poor after short continuations alone, unless `full_mask_rate` is set. Not initialised from RoBERTa.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.denoising_seq2seq import DenoisingSeq2Seq
from lmlab.objectives.masking.token_masking import IndependentMasking, MaskReplacement
from lmlab.objectives.text_continuation import PALMObjective
from lmlab.zoo._denoising import (
    PostNormDenoisingConfig,
    make_denoising_encoder_decoder,
    make_denoising_seq2seq,
    make_special_tokens,
)
from lmlab.zoo._transformer import TRANSFORMER_RECIPES, make_softmax, make_token_embedding

CARD = Card(
    family="transformer",
    kind="exact",
    paper="Bi et al. 2020, PALM: Pre-training an Autoencoding & Autoregressive Language Model",
    source="004 §1.3.1",
    protocols=("LogProb", "Step", "Encode", "EncodeTokens"),
    objectives=("continuation",),
    conditional=True,
    oracle="transformers' BART with the same weights where nothing is copied: "
    "tests/parity/test_hf_bart.py; stages, views and copies by hand: "
    "tests/unit/objectives/test_continuation.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(PostNormDenoisingConfig):
    """Settings of PALM."""

    stage_one_steps: int = field(default=1000, metadata={"at_least": 0})
    """Steps of stage one, which trains the encoder alone by masked LM."""
    first: float = field(default=0.8, metadata={"at_least": 0, "at_most": 1})
    """Share of a text in the encoder; the decoder generates the rest."""
    rate: float = field(default=0.15, metadata={"at_least": 0, "below": 1})
    """Masking rate of the encoder input."""
    joint: bool = False
    """Keep the encoder's masked LM loss in stage two; not in the paper."""
    copy_mechanism: bool = True
    """Whether the decoder can copy source tokens (pointer-generator)."""


TINY = Config(width=16, layers=2, heads=2, length=64, dropout=0.0, attention_dropout=0.0)
SIZES = {
    "tiny": replace(TINY, stage_one_steps=4, full_mask_rate=0.5),
    "small": Config(),
    "base": Config(width=768, layers=12, heads=12, length=512, stage_one_steps=100_000),
}
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> DenoisingSeq2Seq:
    tokens, spelling = (
        make_token_embedding(config, vocabulary),
        make_special_tokens(config, vocabulary),
    )
    objective = PALMObjective(
        spelling,
        IndependentMasking(config.rate),
        MaskReplacement(vocabulary=replace(vocabulary, mask=spelling.mask)),
        make_softmax(config, vocabulary, tokens, bias=True, head=True),
        first=config.first,
        stage_one_steps=config.stage_one_steps,
        joint=config.joint,
        whole=config.full_mask_rate,
    )
    backbone = make_denoising_encoder_decoder(
        config, tokens, vocabulary, copies=config.copy_mechanism
    )
    return make_denoising_seq2seq(config, vocabulary, objective, tokens=tokens, backbone=backbone)
