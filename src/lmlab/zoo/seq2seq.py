"""Sequence-to-sequence (seq2seq) RNN: the encoder's last state initialises the decoder.

    h^enc_i = f_enc(e(x_i), h^enc_{i-1});  h_0 = h^enc_last;  h_t = f_dec(e(s_{t-1}), h_{t-1})
    p(s | x) = Π_t softmax(E h_t + b)[s_t]

The source passes through one vector. `reverse_source=true` reverses it as the paper does;
`context_every_step=true` concatenates the vector to every decoder input (Cho et al. 2014).
`latent_choices=K` adds a latent variable of K values between source and target, summed out exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmlab.backbones.rnn_decoders import RNNDecoder
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.seq2seq import EncoderDecoderLM
from lmlab.zoo import _recurrent_seq2seq as parts

CARD = Card(
    family="recurrent",
    kind="exact",
    paper="Sutskever et al. 2014, Sequence to Sequence Learning; Cho et al. 2014",
    source="002 §3.5.1",
    protocols=("LogProb", "Step", "Encode", "EncodeTokens"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    conditional=True,
    oracle="torch.nn.LSTM and GRU with the same weights: tests/parity/test_seq2seq.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.RecurrentSeq2SeqConfig):
    """Settings of the sequence-to-sequence model."""

    context_every_step: bool = False
    """Concatenate the encoder's last state to every decoder input."""


SIZES = {
    "tiny": Config(width=16, dropout=0.0, context_every_step=True),
    "small": Config(),
    "base": Config(width=512, layers=2, cell="lstm", reverse_source=True),
}
RECIPES = {
    "multi30k": {**parts.SEQ2SEQ_MULTI30K, "width": 384, "reverse_source": True, "epochs": 10}
}


def build(
    config: Config, vocabulary: Vocabulary, *, source: Vocabulary | None = None
) -> EncoderDecoderLM:
    return parts.build_recurrent_seq2seq(
        config,
        vocabulary,
        lambda embedding, cells: RNNDecoder(
            embedding, cells, dropout=config.dropout, everywhere=config.context_every_step
        ),
        wide_inputs=config.context_every_step,
        source=source,
    )
