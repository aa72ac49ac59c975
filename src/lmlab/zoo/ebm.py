"""Energy-based model (EBM): an encoder gives a whole text an energy, trained by NCE on corruptions.

    p(s | T) ∝ exp(-E(s)),  E(s) = Σ_t e(h_t, s_t) + c,  h = encoder(s) with nothing masked
    loss = -log σ(-E(s)) - log σ(E(s')),  s' = s with another token at one position, not in the data

Candidates are input tokens, so an energy can be of any order, where a masked LM's positions are
independent; but the distribution of one token takes one pass per candidate. The encoder can be
initialised from a Transformer (--encoder, a run of roberta, say).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.energy import EnergyBasedModel
from lmlab.objectives.corruption_nce import CorruptionNCE
from lmlab.zoo import _energies as parts
from lmlab.zoo._transformer import make_token_embedding
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, make_sizes

CARD = Card(
    family="transformer",
    kind="unnormalised",
    paper="Gutmann and Hyvärinen 2010, Noise-contrastive estimation",
    source="000",
    protocols=("LogProb", "Energy", "Fill"),
    objectives=("data-against-corruptions",),
    needs=("base", "encoder"),
    baseline="chance",
    exempt={
        "masked-inputs": "it sees the whole text by design, and classifies it as data or noise",
        "distribution": "its log_prob is minus an energy; texts of each length are summed instead",
        "sample": "an energy is sampled by Markov chains, which have tests of their own",
    },
    oracle="energies and loss by hand, Z by enumeration: tests/parity/test_energy_models.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.EnergyConfig):
    """Settings of an energy-based model."""

    pooling: parts.PoolingName = "all"
    """Positions whose energies are summed: all, the blanks, or (stopped) all, with a template that
    does not attend to the blanks; in training the corrupted position is the blank."""
    corruption: parts.CorruptionName = "uniform"
    """Corruption distribution: uniform, unigram, or a masked LM's predictions (proposals), which
    needs a run of one as --base."""
    corruption_filter: parts.MembershipName = "texts"
    """Test that drops corruptions found in the data: by texts or (n-)grams; none: no test."""
    filter_order: int = field(default=4, metadata={"at_least": 1})
    """n of those n-grams."""


SIZES = make_sizes(Config)
RECIPES = TRANSFORMER_RECIPES


def build(
    config: Config,
    vocabulary: Vocabulary,
    base: parts.OptionalSystem = None,
    encoder: parts.OptionalSystem = None,
) -> EnergyBasedModel:
    tokens = make_token_embedding(config, vocabulary)
    return EnergyBasedModel(
        vocabulary=vocabulary,
        backbone=parts.make_encoder(config, tokens, encoder),
        emission=parts.make_energy_emission(config, tokens),
        objective=CorruptionNCE(
            vocabulary,
            parts.make_corruption(config.corruption, vocabulary, base),
            parts.POOLINGS[config.pooling](),
            negatives=config.negatives,
            index=parts.make_membership(config.corruption_filter, config.filter_order),
        ),
    )
