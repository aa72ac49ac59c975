"""Residual energy-based model: a language model reweighted globally, p(s) ∝ p_LM(s) exp(-E(s)).

    E(s) = Σ_t e(h_t, s_t) + c,  h = encoder(s);  Z = E_{s ~ LM} exp(-E(s))
    loss = -log σ(-E(s)) - log σ(E(s')),  s' ~ p_LM

The base (--base, any autoregressive run) is frozen and is the noise distribution of NCE; the
encoder sees whole texts and corrects left-to-right errors. The encoder can be initialised from a
Transformer (--encoder, a run of roberta, say), as in the paper. Scores are estimates: Z is
estimated from samples of the base; `low` and `high` lie two standard errors beyond its two
estimates.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.core.card import Card
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.residual_energy import ResidualEnergyModel
from lmlab.objectives.residual_nce import FrozenBaseLM, ResidualNCE
from lmlab.zoo._energies import EnergyConfig, EnergyName, make_encoder, make_energy_emission
from lmlab.zoo._transformer import make_token_embedding
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, make_sizes

CARD = Card(
    family="transformer",
    kind="estimate",
    paper="Deng et al. 2020, Residual Energy-Based Models for Text Generation",
    source="000",
    protocols=("LogProb", "Energy", "Sample"),
    objectives=("data-against-samples",),
    needs=("base", "encoder"),
    base="lstm",
    exempt={
        "masked-inputs": "its encoder sees the whole text by design, and classifies it as data or "
        "noise",
        "distribution": "it scores whole texts and no prefixes, and its Z is estimated; its oracle "
        "enumerates all texts up to its greatest length",
        "sample": (
            "its samples follow its distribution only as the number of candidates grows; its "
            "oracle measures this"
        ),
    },
    oracle="bounds, Z and samples on an enumerated space: tests/parity/test_residual.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(EnergyConfig):
    """Settings of a residual energy-based model."""

    energy: EnergyName = "linear"
    """Energy per position, as in ebm; linear starts at the base model."""
    partition_samples: int = field(default=4096, metadata={"at_least": 2})
    """Samples of the base to estimate Z."""
    candidates: int = field(default=64, metadata={"at_least": 1})
    """Samples of the base from which one is resampled, for generation."""


SIZES = make_sizes(
    Config, tiny={"layers": 1, "attention_dropout": 0.1, "partition_samples": 200, "candidates": 8}
)
RECIPES = TRANSFORMER_RECIPES


def build(
    config: Config, vocabulary: Vocabulary, base: System, encoder: System | None = None
) -> ResidualEnergyModel:
    tokens = make_token_embedding(config, vocabulary)
    model = FrozenBaseLM(base, max_length=config.length - 1)
    return ResidualEnergyModel(
        vocabulary=vocabulary,
        backbone=make_encoder(config, tokens, encoder),
        emission=make_energy_emission(config, tokens),
        objective=ResidualNCE(model, negatives=config.negatives),
        draws=config.partition_samples,
        candidates=config.candidates,
    )
