"""Sequence-to-sequence RNN with attention (Bahdanau, Luong) over the encoder states.

    p_i = softmax_i(score(q_t, h^enc_i));  c_t = Σ_i p_i h^enc_i
    before (Bahdanau):  q_t = h_{t-1},  h_t = f([e(s_{t-1}), c_t], h_{t-1})
    after (Luong):      h_t = f(e(s_{t-1}), h_{t-1}),  q_t = h_t
    p(s_t | …) = softmax(E tanh(A [h_t, c_t] + a) + b)

`score` is dot, scaled, general or additive; `input_feeding` is Luong's input feeding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from lmlab.backbones.rnn_decoders import AttentionDecoder, BahdanauDecoder, LuongDecoder
from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.recurrent_cells import RecurrentCell
from lmlab.layers.rnn_attention import RNN_ATTENTIONS, AttentionScoreName
from lmlab.models.seq2seq import EncoderDecoderLM
from lmlab.zoo import _recurrent_seq2seq as parts

CARD = Card(
    family="recurrent",
    kind="exact",
    paper="Bahdanau et al. 2015, Neural Machine Translation by Jointly Learning to Align and "
    "Translate; Luong et al. 2015, Effective Approaches to Attention",
    source="002 §3.5.1",
    protocols=("LogProb", "Step", "Encode", "EncodeTokens"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    conditional=True,
    oracle="torch.nn cells and the formula position by position: tests/parity/test_seq2seq.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.RecurrentSeq2SeqConfig):
    """Settings of the sequence-to-sequence model with attention."""

    bidirectional: bool = True
    """Whether the encoder is bidirectional, with half the width per direction."""
    query_state: Literal["before", "after"] = "before"
    """before (Bahdanau): the previous state is the query; after (Luong): the new state is."""
    score: AttentionScoreName = "dot"
    """dot, scaled, general or additive."""
    input_feeding: bool = False
    """Luong's input feeding: concatenate the last attentional state; needs query_state=after."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.input_feeding and self.query_state == "before":
            raise UserError(
                "input_feeding does not apply to query_state=before, where the context is already "
                "an input; remove it."
            )


SIZES = {
    "tiny": Config(width=16, dropout=0.0),
    "small": Config(),
    "base": Config(
        width=512, layers=2, cell="lstm", query_state="after", score="general", input_feeding=True
    ),
}
RECIPES = {"multi30k": {**parts.SEQ2SEQ_MULTI30K, "width": 256, "score": "general", "epochs": 12}}


def build(
    config: Config, vocabulary: Vocabulary, *, source: Vocabulary | None = None
) -> EncoderDecoderLM:
    def make_decoder(embedding: nn.Embedding, cells: list[RecurrentCell]) -> AttentionDecoder:
        attention = RNN_ATTENTIONS[config.score](config.width)
        if config.query_state == "before":
            return BahdanauDecoder(embedding, cells, attention, dropout=config.dropout)
        input_feeding = config.input_feeding
        return LuongDecoder(
            embedding, cells, attention, dropout=config.dropout, input_feeding=input_feeding
        )

    wide_inputs = config.query_state == "before" or config.input_feeding
    return parts.build_recurrent_seq2seq(
        config, vocabulary, make_decoder, wide_inputs=wide_inputs, source=source
    )
