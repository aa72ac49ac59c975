"""Mixture of unigrams per token (no context): each token drawn from one of K distributions; EM.

    p(s) = Σ_z π_z P(s | z)

A mixture of unigrams per token is a unigram, so it cannot beat the unigram entropy on its training
text: a sanity check. Fitted by EM or by gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lmlab.backbones.window import NoContext
from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.unigram_mixture import UnigramMixture
from lmlab.models.causal_lm import AutoregressiveLM, UnigramMixtureLM
from lmlab.objectives.next_token import NextToken

CARD = Card(
    family="counting",
    kind="exact",
    paper="Dempster, Laird and Rubin 1977 (EM)",
    source="003 DLM9",
    aliases=("DLM9",),
    protocols=("LogProb", "Step", "ExpectationMaximisation"),
    fitting="em",
    baseline="uniform",
    exempt={"input-dependence": "it takes no input, so none can change a prediction"},
    oracle="unigram entropy of the training split: tests/parity/test_windows.py",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the unigram mixture."""

    states: int = field(default=8, metadata={"at_least": 1})
    """K, mixture components."""
    fitting: Literal["em", "gradient"] = "em"
    """em (expectation-maximisation) or gradient."""


SIZES = {"tiny": Config(states=3), "small": Config(), "base": Config(states=64)}


def build(config: Config, vocabulary: Vocabulary) -> AutoregressiveLM:
    return UnigramMixtureLM(
        vocabulary=vocabulary,
        backbone=NoContext(),
        emission=UnigramMixture(config.states, vocabulary),
        objective=NextToken(),
        fitting=config.fitting,
    )
