"""Linear interpolation of trained runs, with weights tuned on held-out text.

    p(w | u) = Σ_k λ_k p_k(w | u),   λ ≥ 0, Σ_k λ_k = 1

Made by `lmlab mix RUN RUN … --data CORPUS --out RUN` of runs of any systems that step and share
their tokenizer; they are stored in the new run, unchanged. The weights maximise the probability of
held-out text, by EM on a concave function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.mixture import InterpolatedLM

CARD = Card(
    family="mixture",
    kind="exact",
    paper="Jelinek and Mercer 1980, Interpolated estimation of Markov source parameters from "
    "sparse data",
    source="",
    aliases=("interpolation", "jelinek-mercer"),
    protocols=("LogProb", "Step"),
    fitting="em",
    components=("ngram", "lstm"),
    oracle="Jelinek-Mercer arithmetic by hand, and weights by scipy: tests/parity/test_mixture.py",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of an interpolation; `lmlab mix` sets them."""

    weights: tuple[float, ...] = ()
    """Weight of each component; equal ones if empty."""
    names: tuple[str, ...] = ()
    """Name of each component."""


SIZES = {"tiny": Config(), "small": Config(), "base": Config()}


def build(
    config: Config, vocabulary: Vocabulary, components: Sequence[System] = ()
) -> InterpolatedLM:
    if len(components) < 2:
        raise UserError(
            "an interpolation is made of two trained runs or more; use lmlab mix RUN RUN --out RUN."
        )
    weights = config.weights or [1 / len(components)] * len(components)
    return InterpolatedLM(components, weights, config.names)
