"""Minimal gated unit (MGU) LM with eight ablation switches; output mixes K cosine softmaxes.

    f = σ(x U_f [0] + h V_f [1] + b_f [2])
    g = tanh(x U_h [3] + (h∘f) V_h [4] + b_h [5])
    h' = (1-f)∘h [6] + f∘g [7];  p(next) = Σ_z P(z | h') P(next | z), K states

`--set off=4` ablates term 4 and its parameters; separate several by commas, as numbers or names.
With 7 off the candidate's parameters go too, with 0 and 3 off the model ignores its input, and 6
and 7 cannot both be off. The initial state is learned; `starts` = W > 1 gives a mixture of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.switch_cells import MINIMAL_GRU_SWITCHES
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.zoo import _recurrent as parts

CARD = Card(
    family="recurrent",
    kind="exact",
    paper="Zhou et al. 2016, Minimal Gated Unit for Recurrent Neural Networks",
    source="003 DLM46",
    aliases=("DLM46",),
    protocols=("LogProb", "Step"),
    objectives=("next-token", "nce", "importance", "sampled-softmax"),
    oracle="every switch against its formula in numpy: tests/parity/test_switch_cells.py",
    switches=(
        "gate-input",
        "gate-hidden",
        "gate-bias",
        "candidate-input",
        "candidate-hidden",
        "candidate-bias",
        "keep",
        "admit",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.RecurrentMixtureConfig):
    """Settings of the minimal gated unit (MGU)."""

    off: tuple[int, ...] = field(default=(), metadata={"switches": MINIMAL_GRU_SWITCHES})
    """Terms to ablate, by number or name: 4,6 or gate-input,candidate-bias."""


SIZES = parts.make_recurrent_mixture_sizes(Config)
RECIPES = parts.RECURRENT_MIXTURE_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    return parts.build_rnn_lm(
        config, vocabulary, partial(parts.build_cell, "gru-minimal", off=config.off)
    )
