"""EBM: an encoder reads the whole text and gives it an energy; data is told from corruptions.

    p(s | T) ∝ exp(-E(s)),  E(s) = Σ_t e(h_t, s_t) + c,  h = encoder(s) with nothing masked
    loss = -log σ(-E(s)) - log σ(E(s')),  s' = s with another token at one place, not in the data

Candidates are fed, so that an energy may be of any order, where a masked model's places are
independent (000); but one token's law takes a pass for each candidate. The encoder may begin with
the weights of a Transformer (--encoder, a run of roberta, say).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmlab.core.card import Card
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.energy import EnergyBasedModel
from lmlab.objectives.corruption_nce import CorruptionNCE
from lmlab.zoo import _energies as parts
from lmlab.zoo._transformer import TRANSFORMER_RECIPES, make_token_embedding

CARD = Card(
    family="transformer",
    kind="unnormalised",
    paper="000; Gutmann and Hyvärinen 2010, Noise-contrastive estimation",
    source="000",
    protocols=("LogProb", "Energy", "Fill"),
    objectives=("data-against-corruptions",),
    needs=("base", "encoder"),
    baseline="chance",
    exempt={
        "cheat": "it is shown the whole text on purpose, and asked whether that is data",
        "distribution": "its log_prob is minus an energy; texts of each length are summed instead",
        "sample": "an energy is sampled by Markov chains, which have tests of their own",
    },
    oracle="energies and loss by hand, Z by enumeration: tests/parity/test_energy_models.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(parts.EnergyConfig):
    """Settings of an energy model."""

    pooling: parts.PoolingName = "all"
    """Whose energies are added: of all places, of the blanks, or (stopped) of all with a template
    that does not see the blanks; in training the corrupted place is the blank."""
    corruption: parts.CorruptionName = "uniform"
    """What takes a token's place: any (uniform), a frequent one (unigram), or what a masked model
    says (proposals), which alone takes a run of one by --base."""
    known: parts.MembershipName = "texts"
    """By what a corruption is found to be data, and left out: texts or (n-)grams; none: never."""
    gram: int = field(default=4, metadata={"at_least": 1})
    """n of those n-grams."""


SIZES = {
    "tiny": Config(width=16, layers=2, heads=2, length=64, dropout=0.0, attention_dropout=0.0),
    "small": Config(),
    "base": Config(width=768, layers=12, heads=12, length=512),
}
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
            index=parts.make_membership(config.known, config.gram),
        ),
        length=config.length,
    )
