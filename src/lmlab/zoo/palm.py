"""PALM: an encoder learns to restore a text, then a decoder to go on with it.

    stage one: q(s_t | masked s) at the encoder;  stage two: p(s_>c | masked s_≤c), c = 0.8 T

15 % of the tokens that the encoder reads are hidden as in BERT; the decoder may copy its source's
words (`copies`). Stage two trains both by the continuation alone, as 004 and the paper have it;
`joint` adds stage one's loss. A text's score is p(s | <mask>), all of it a continuation of nothing
known: exact, poor after short continuations alone, which `whole` mends. No start from RoBERTa.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.denoising_seq2seq import DenoisingSeq2Seq
from lmlab.objectives.masking.token_masking import (
    IndependentMasking,
    MaskReplacement,
)
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
    """Steps of training in which the encoder alone learns, from masked texts."""
    first: float = field(default=0.8, metadata={"at_least": 0, "at_most": 1})
    """Share of a text that the encoder reads; the decoder writes the rest."""
    rate: float = field(default=0.15, metadata={"at_least": 0, "below": 1})
    """Share of the tokens that are hidden from the encoder."""
    joint: bool = False
    """Whether the encoder goes on to restore hidden tokens in stage two; not so in the paper."""
    copy_mechanism: bool = True
    """Whether the decoder may copy words of its source."""


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
