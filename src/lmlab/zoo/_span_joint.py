"""The ways in which `span-joint` ties its blanks to each other, by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from lmlab.core.errors import unknown_name
from lmlab.core.joint import JointEmission
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.joint_states import JointStates
from lmlab.emissions.pairwise_gaussian import PairwiseGaussian
from lmlab.emissions.potts import Potts
from lmlab.emissions.softmax import Softmax
from lmlab.layers.links import ParentChoice
from lmlab.zoo._transformer import TransformerConfig

TieName = Literal["chain", "tree", "potts", "gaussian"]


@dataclass(frozen=True, kw_only=True)
class SpanJointConfig(TransformerConfig):
    """Settings of a masked model that fills its blanks in together."""

    pre_norm: bool = False
    """Norm before each sublayer, and one at the end; else after each."""
    embedding_norm: bool = True
    """Whether a norm stands after the embedding."""
    norm_epsilon: float = field(default=1e-12, metadata={"at_least": 0})
    """What norms add to the variance."""
    ties: TieName = "chain"
    """chain: each blank to the one before it, by states; tree: to an earlier one that is chosen;
    potts: every pair, token by token, by pseudo-likelihood; gaussian: every pair, by a Gaussian
    over tokens' vectors."""
    states: int = field(default=128, metadata={"at_least": 1, "at_most": 4096})
    """K, hidden states of a blank; with one the blanks are independent."""
    rank: int = field(default=32, metadata={"at_least": 1})
    """Numbers in the vector of a state (or token), and rows of the matrices Q and K."""
    most: float = field(default=1.0, metadata={"above": 0, "at_most": 1})
    """Greatest share of a text's tokens that is hidden in training."""
    spans: float = field(default=0.5, metadata={"at_least": 0, "at_most": 1})
    """Share of the texts where what is hidden are neighbours."""


def make_ties(config: SpanJointConfig, vocabulary: Vocabulary, unary: Softmax) -> JointEmission:
    """The emission of the config's kind, over a softmax's scores of each blank."""
    match config.ties:
        case "potts":
            return Potts(config.width, config.rank, vocabulary, unary=unary)
        case "gaussian":
            return PairwiseGaussian(config.width, config.rank, config.rank, vocabulary)
        case "chain" | "tree":
            tree = config.ties == "tree"
            return JointStates(
                config.width,
                config.states,
                config.rank,
                vocabulary,
                unary=unary,
                parents=ParentChoice(config.width, config.rank) if tree else None,
            )
    raise unknown_name("way to tie blanks", config.ties, get_args(TieName))
