"""Masked LM with a joint over all masked tokens: latent-state chain or tree CRF, Potts or Gaussian.

    p(x | rest) = 1/Z Σ_z Π_i exp(φ_i(x_i) + g(z_i, x_i) + r_i(z_i)) Π_{i>1} A_i(z_{i-1}, z_i)
    A_i(z, z') = exp((Q_i v_z) · (K_i v_z')) / Σ_{z''} exp((Q_i v_z) · (K_i v_{z''}))

BERT's product of marginals gives 中国…北京 and 中国…北黎 alike. Here masks have unary and pairwise
potentials: φ_i scores tokens and r_i(z) = v_z · R h_i states at mask i; g is normalised over
tokens, and A_i over the states of the later mask, with Q_i and K_i computed from the hidden states
at masks i - 1 and i. A chain of K states makes the sum exact at a cost of n (K² + K V). With one
state masks are independent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from lmlab.core.card import Card
from lmlab.core.errors import unknown_name
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.emission_interfaces import JointEmission
from lmlab.emissions.joint_states import JointStates
from lmlab.emissions.potts import PairwiseGaussian, PottsEmission
from lmlab.emissions.softmax import Softmax
from lmlab.layers.pairwise_potentials import ParentSelection
from lmlab.models.joint_masked_lm import JointMaskedLM
from lmlab.objectives.joint_masking import JointMaskedLMObjective, UniformCountMasking
from lmlab.zoo._transformer import make_softmax, make_token_embedding, make_transformer
from lmlab.zoo._transformer_config import TRANSFORMER_RECIPES, BERTEncoderConfig, make_sizes

DependencyName = Literal["chain", "tree", "potts", "gaussian"]

CARD = Card(
    family="transformer",
    kind="pseudo",
    paper="cf. Lafferty, McCallum and Pereira 2001 (CRF), Devlin et al. 2019",
    source="000 理论实验1",
    protocols=("LogProb", "Fill", "JointFill", "Logits", "Encode", "EncodeTokens"),
    objectives=("joint-blanks",),
    corpus="capitals",
    exempt={
        "distribution": "the joint of some blanks given the rest; nothing says that those of "
        "different blanks agree",
        "sample": "it fills blanks, and can't sample a text",
    },
    oracle="all fillings enumerated: tests/parity/test_span_joint.py",
)


@dataclass(frozen=True, kw_only=True)
class Config(BERTEncoderConfig):
    """Settings of a masked LM that fills all masks jointly."""

    dependencies: DependencyName = "chain"
    """Graph over masks. chain: each linked to the previous one, by latent states; tree: to a
    selected earlier one; potts: all pairs of tokens, by pseudo-likelihood; gaussian: all pairs, by
    a Gaussian over token vectors."""
    states: int = field(default=128, metadata={"at_least": 1, "at_most": 4096})
    """K, latent states per mask; with one, masks are independent."""
    rank: int = field(default=32, metadata={"at_least": 1})
    """Size of state (or token) vectors, and rows of the matrices Q and K."""
    max_mask_rate: float = field(default=1.0, metadata={"above": 0, "at_most": 1})
    """Maximum masking rate in training."""
    spans: float = field(default=0.5, metadata={"at_least": 0, "at_most": 1})
    """Share of the texts in which the masked tokens are contiguous."""


SIZES = make_sizes(
    Config, tiny={"states": 4, "rank": 4, "pre_norm": True}, base={"states": 512, "rank": 64}
)
RECIPES = TRANSFORMER_RECIPES


def build(config: Config, vocabulary: Vocabulary) -> JointMaskedLM:
    tokens = make_token_embedding(config, vocabulary)
    unary = make_softmax(config, vocabulary, tokens, bias=True, head=True)
    return JointMaskedLM(
        vocabulary=vocabulary,
        backbone=make_transformer(config, tokens),
        emission=make_joint_emission(config, vocabulary, unary),
        objective=JointMaskedLMObjective(
            vocabulary, UniformCountMasking(max_mask_rate=config.max_mask_rate, spans=config.spans)
        ),
    )


def make_joint_emission(config: Config, vocabulary: Vocabulary, unary: Softmax) -> JointEmission:
    """The configured joint emission, with softmax scores as unary potentials."""
    match config.dependencies:
        case "potts":
            return PottsEmission(config.width, config.rank, vocabulary, unary=unary)
        case "gaussian":
            return PairwiseGaussian(config.width, config.rank, config.rank, vocabulary)
        case "chain" | "tree":
            tree = config.dependencies == "tree"
            return JointStates(
                config.width,
                config.states,
                config.rank,
                vocabulary,
                unary=unary,
                parents=ParentSelection(config.width, config.rank) if tree else None,
            )
    raise unknown_name("dependency structure", config.dependencies, get_args(DependencyName))
