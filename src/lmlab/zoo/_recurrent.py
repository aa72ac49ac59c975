"""Recurrent LMs: cells by name (RNN, LSTM, GRU, variants), shared settings, recipes and builder."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal, TypeVar, get_args

from torch import nn

from lmlab.backbones.recurrent import Recurrent
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.parts import Emission
from lmlab.core.switches import parse_switches
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.input_embedding import SphereEmbedding
from lmlab.layers.min_gru import MinGRUCell
from lmlab.layers.recurrent_cells import (
    CoupledLSTMCell,
    GRUCell,
    InputResetGRUCell,
    LinearCell,
    LSTMCell,
    PeepholeLSTMCell,
    RecurrentCell,
    TanhCell,
)
from lmlab.layers.switch_cells import MGRUCell, MinimalGRUCell, SwitchCell
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.models.initial_state_mixture import InitialStateMixtureLM
from lmlab.objectives.next_token import NextToken
from lmlab.objectives.sampled_losses import NextTokenLossConfig
from lmlab.zoo._emissions import EmissionName, build_emission
from lmlab.zoo._next_token import SHORT_SENTENCES, uniform_embedding

CellName = Literal[
    "rnn",
    "linear",
    "lstm",
    "lstm-peephole",
    "lstm-coupled",
    "gru",
    "gru-notes",
    "gru-minimal",
    "mgru",
    "min-gru",
]
"""Names of cells for `build_cell`."""
CELL_NAMES: tuple[str, ...] = get_args(CellName)

_CELLS: dict[str, Callable[[int, int], RecurrentCell]] = {
    "rnn": TanhCell,
    "linear": LinearCell,
    "lstm": LSTMCell,
    "lstm-peephole": PeepholeLSTMCell,
    "lstm-coupled": CoupledLSTMCell,
    "gru": GRUCell,
    "gru-notes": InputResetGRUCell,
    "min-gru": MinGRUCell,
}
_SWITCH_CELLS: dict[str, type[SwitchCell]] = {"gru-minimal": MinimalGRUCell, "mgru": MGRUCell}
assert set(CELL_NAMES) == {*_CELLS, *_SWITCH_CELLS}


def build_cell(
    name: str, input_width: int, width: int, off: Collection[int | str] | str = ()
) -> RecurrentCell:
    """Build the named cell; `off` lists the terms switched off, by number or name."""
    if name in _SWITCH_CELLS:
        cell = _SWITCH_CELLS[name]
        return cell(input_width, width, off=parse_switches(off, cell.switches, of=name))
    if name not in _CELLS:
        raise unknown_name("cell", name, CELL_NAMES)
    if off:
        raise UserError(
            f"the cell {name} has no switches to turn off; use {' or '.join(_SWITCH_CELLS)}."
        )
    return _CELLS[name](input_width, width)


def cell_switches(name: str) -> tuple[str, ...]:
    """Names of the cell's switches, by number; empty if it has none."""
    return _SWITCH_CELLS[name].switches if name in _SWITCH_CELLS else ()


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(NextTokenLossConfig):
    """Settings of a recurrent language model."""

    width: int = field(default=128, metadata={"at_least": 1})
    """Size of hidden states and embeddings."""
    layers: int = field(default=1, metadata={"at_least": 1})
    """Number of layers."""
    dropout: float = field(default=0.3, metadata={"at_least": 0, "below": 1})
    """Dropout rate of embeddings and layer outputs."""
    tied: bool = False
    """Weight tying: output vectors are the input embeddings."""
    emission: EmissionName = "softmax"
    """Emission (output layer); with a sphere emission, input embeddings are normalised too."""
    states: int = field(default=400, metadata={"at_least": 1})
    """K, mixture components of a mixture emission."""
    starts: int = field(default=0, metadata={"at_least": 0})
    """W, learned initial states, summed out exactly; 0 for a fixed zero state."""


@dataclass(frozen=True, kw_only=True)
class RecurrentMixtureConfig(RecurrentConfig):
    """Settings of a recurrent language model with a K-component mixture emission."""

    emission: EmissionName = "sphere-mixture"
    """Emission (output layer); with a sphere emission, input embeddings are normalised too."""
    starts: int = field(default=1, metadata={"at_least": 0})
    """W, learned initial states, summed out exactly; 0 for a fixed zero state."""


ConfigType = TypeVar("ConfigType", bound=RecurrentConfig)
ON_SPHERE = ("sphere", "sphere-mixture")
"""Cosine emissions, with which input embeddings are normalised too."""


def make_recurrent_sizes(config: type[ConfigType]) -> dict[str, ConfigType]:
    return {
        "tiny": config(width=16, dropout=0.0),
        "small": config(),
        "base": config(width=650, layers=2, dropout=0.5, tied=True),
    }


def make_recurrent_mixture_sizes(
    config: type[ConfigType], *, tiny_starts: int = 1
) -> dict[str, ConfigType]:
    return {
        "tiny": config(width=16, states=12, starts=tiny_starts, dropout=0.0),
        "small": config(),
        "base": config(width=512, states=1000, dropout=0.5, tied=True),
    }


RECURRENT_SIZES = make_recurrent_sizes(RecurrentConfig)
RECURRENT_MIXTURE_SIZES = make_recurrent_mixture_sizes(RecurrentMixtureConfig, tiny_starts=3)

RECURRENT_RECIPES = {
    "multi30k": {"tied": True, "dropout": 0.4, **SHORT_SENTENCES},
    # As wide as the small LSTM of Zaremba et al. 2014, with one layer instead of two.
    "ptb": {
        "width": 200,
        "tied": True,
        "dropout": 0.35,
        "learning_rate": 4e-3,
        "schedule": "cosine",
        "warmup_steps": 100,
        "stream_batch_size": 20,
        "bptt": 35,
        "weight_decay": 0.01,
        "epochs": 8,
    },
}


RECURRENT_MIXTURE_RECIPES = {
    "multi30k": {
        "tied": True,
        "dropout": 0.3,
        "learning_rate": 1e-2,
        "schedule": "cosine",
        "warmup_steps": 100,
        "tokens_per_batch": 2400,
        "epochs": 20,
    }
}


def build_rnn_lm(
    config: RecurrentConfig,
    vocabulary: Vocabulary,
    cell: Callable[[int, int], RecurrentCell],
    *,
    emission: Callable[[nn.Embedding | None], Emission] | None = None,
) -> AutoregressiveLM:
    """Embedding → stacked cells → emission, trained to predict the next token.

    `emission` builds one from the tied embedding (or None), overriding the config's.
    """
    embedding = embedding_for(config.emission, vocabulary.size, config.width)
    cells = [cell(config.width, config.width) for _ in range(config.layers)]
    tied = embedding if config.tied else None
    # A softmax relies on the backbone's output dropout; other emissions apply their own.
    emission_drops = config.emission != "softmax"
    output_layer = (
        build_emission(
            config.emission,
            config.width,
            vocabulary,
            tied=tied,
            states=config.states,
            dropout=config.dropout if emission_drops else 0.0,
        )
        if emission is None
        else emission(tied)
    )
    output = nn.Identity() if emission_drops else None
    backbone = Recurrent(embedding, cells, config.dropout, output=output)
    if config.starts:
        return InitialStateMixtureLM(
            vocabulary=vocabulary,
            backbone=backbone,
            emission=output_layer,
            objective=NextToken(),
            starts=config.starts,
        )
    if not all(layer.can_leave_zero for layer in cells):
        raise UserError(
            "with these switches off a state that starts at zero stays zero; learn the initial "
            "state (--set starts=1), or turn more of them on."
        )
    return AutoregressiveLM(
        vocabulary=vocabulary, backbone=backbone, emission=output_layer, objective=NextToken()
    )


def embedding_for(emission: EmissionName, size: int, width: int) -> nn.Embedding:
    """Token embedding; normalised with a sphere emission."""
    kind = SphereEmbedding if emission in ON_SPHERE else uniform_embedding
    return kind(size, width)
