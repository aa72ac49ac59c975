"""Reduced minimal gated unit (mGRU) LM, twelve ablation switches; mixture of K cosine softmaxes.

    f = σ(h V_f)         [0 off: no h V_f]
    g = tanh(x U_h)      [1 off: no x U_h]      [4 off: sigmoid instead of tanh]
    h' = (1-f)∘j + f∘g   [2 off: no first term] [3 off: no second term] [5 off: adds f∘j]
    j = h                [10 off: attention over all earlier states, by content and distance]
                         [11 off: attention over them by bilinear heads, queried by h]
    6 off: the gate sees h - ½ and the output is h' - ½
      with it [7 off: the gate sees h] [8 off: the output is h']
              [9 off: the gate sees atanh(2(h - ½)), clipped]

It is `gru-minimal` without 0, 2, 4 and 5. With 4 and 6 off the initial state passes through a
sigmoid, and states are in [0, 1]. 7, 8 and 9 are variants of 6 and refused without it, as are 10
with 11 and 2 with 3; without 1 or 3 the model ignores its input.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.switch_cells import MGRU_SWITCHES
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo import _recurrent as parts

CARD = Card(
    family="recurrent",
    kind="exact",
    paper="cf. Heck and Salem 2017, Simplified Minimal Gated Unit",
    source="003 DLM47",
    aliases=("DLM47",),
    protocols=("LogProb", "Step"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    oracle="every switch against its formula in numpy: tests/parity/test_switch_cells.py",
    switches=(
        "gate-hidden",
        "candidate-input",
        "keep",
        "admit",
        "tanh",
        "forget",
        "no-centring",
        "centring-gate",
        "centring-output",
        "no-logit",
        "no-attention",
        "no-heads",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.RecurrentMixtureConfig):
    """Settings of the mGRU."""

    off: tuple[int, ...] = field(default=(), metadata={"switches": MGRU_SWITCHES})
    """Switches to turn off, by number or name: 4,6 or tanh,no-centring."""


SIZES = parts.make_recurrent_mixture_sizes(Config)
RECIPES = parts.RECURRENT_MIXTURE_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    return parts.build_rnn_lm(config, vocabulary, partial(parts.build_cell, "mgru", off=config.off))
