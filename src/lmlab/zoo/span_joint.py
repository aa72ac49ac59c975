"""Span-joint: a masked model that fills in all blanks of a text together, adjacent or apart.

    p(x | rest) = 1/Z Σ_z Π_i exp(φ_i(x_i) + g(z_i, x_i) + r_i(z_i)) Π_{i>1} A_i(z_{i-1}, z_i)
    A_i(z, z') = exp((Q_i v_z) · (K_i v_z')) / Σ_{z''} exp((Q_i v_z) · (K_i v_{z''}))

BERT's product of single blanks gives 中国…北京 and 中国…北黎 alike. Here blanks have potentials of
their own and in pairs: φ_i scores tokens and r_i(z) = v_z · R h_i states at blank i; g is
normalised over tokens, and A_i over the states of the later blank, with Q_i and K_i made of the
hidden states at blanks i - 1 and i. A chain of K states makes the sum exact at a cost of
n (K² + K V). With one state blanks are independent.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmlab.core.card import Card
from lmlab.core.joint import JointFilling
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.joint_blanks import AnyNumber, JointBlanks
from lmlab.zoo._span_joint import SpanJointConfig, make_ties
from lmlab.zoo._transformer import (
    TRANSFORMER_RECIPES,
    make_softmax,
    make_tokens,
    make_transformer,
)

CARD = Card(
    family="transformer",
    kind="pseudo",
    paper="000 (CATSMILE-9008); cf. Lafferty, McCallum and Pereira 2001 (CRF), Devlin et al. 2019",
    source="000 理论实验1",
    protocols=("LogProb", "Fill", "JointFill", "Logits", "Encode", "EncodeTokens"),
    objectives=("joint-blanks",),
    corpus="capitals",
    exempt={
        "distribution": "the joint of some blanks given the rest; nothing says that those of "
        "different blanks agree",
        "sample": "it fills blanks in, and has no way to draw a text of its own",
    },
    oracle="all fillings enumerated: tests/parity/test_span_joint.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(SpanJointConfig):
    """Settings of span-joint."""


SIZES = {
    "tiny": Config(
        width=16,
        layers=2,
        heads=2,
        length=64,
        states=4,
        rank=4,
        pre_norm=True,
        dropout=0.0,
        attention_dropout=0.0,
    ),
    "small": Config(),
    "base": Config(width=768, layers=12, heads=12, length=512, states=512, rank=64),
}
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> JointFilling:
    tokens = make_tokens(config, vocabulary)
    unary = make_softmax(config, vocabulary, tokens, bias=True, head=True)
    system = JointFilling(
        vocabulary=vocabulary,
        backbone=make_transformer(config, tokens),
        emission=make_ties(config, vocabulary, unary),
        objective=JointBlanks(vocabulary, AnyNumber(most=config.most, spans=config.spans)),
    )
    system.window = config.length - 1
    return system
