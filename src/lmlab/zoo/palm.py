"""PALM: masked LM pre-training of the encoder, then text continuation with a copying decoder.

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
from lmlab.zoo import _denoising as parts
from lmlab.zoo._transformer import make_softmax, make_token_embedding
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, make_sizes

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
    "tests/unit/objectives/test_text_continuation.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.PostNormDenoisingConfig):
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


SIZES = make_sizes(
    Config, tiny={"stage_one_steps": 4, "full_mask_rate": 0.5}, base={"stage_one_steps": 100_000}
)
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> DenoisingSeq2Seq:
    tokens = make_token_embedding(config, vocabulary)
    special_tokens = parts.make_special_tokens(config, vocabulary)
    objective = PALMObjective(
        special_tokens,
        IndependentMasking(config.rate),
        MaskReplacement(vocabulary=replace(vocabulary, mask=special_tokens.mask)),
        make_softmax(config, vocabulary, tokens, bias=True, head=True),
        first=config.first,
        stage_one_steps=config.stage_one_steps,
        joint=config.joint,
        full_mask_rate=config.full_mask_rate,
    )
    backbone = parts.make_denoising_encoder_decoder(
        config, tokens, vocabulary, copies=config.copy_mechanism
    )
    return parts.make_denoising_seq2seq(
        config, vocabulary, objective, tokens=tokens, backbone=backbone
    )
