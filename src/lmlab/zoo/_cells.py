"""Registry of recurrent cells by name: RNN, LSTM, GRU and their variants."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal, get_args

from lmlab.core.errors import UserError, unknown_name
from lmlab.core.switches import parse_switches
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
]
"""Names of cells for `build_cell`."""

_CELLS: dict[str, Callable[[int, int], RecurrentCell]] = {
    "rnn": TanhCell,
    "linear": LinearCell,
    "lstm": LSTMCell,
    "lstm-peephole": PeepholeLSTMCell,
    "lstm-coupled": CoupledLSTMCell,
    "gru": GRUCell,
    "gru-notes": InputResetGRUCell,
}
_SWITCH_CELLS: dict[str, type[SwitchCell]] = {"gru-minimal": MinimalGRUCell, "mgru": MGRUCell}
assert set(get_args(CellName)) == {*_CELLS, *_SWITCH_CELLS}


def build_cell(
    name: str, input_width: int, width: int, off: Collection[int | str] | str = ()
) -> RecurrentCell:
    """Build the named cell; `off` lists the terms switched off, by number or name."""
    if name in _SWITCH_CELLS:
        cell = _SWITCH_CELLS[name]
        return cell(input_width, width, off=parse_switches(off, cell.switches, of=name))
    if name not in _CELLS:
        raise unknown_name("cell", name, get_args(CellName))
    if off:
        raise UserError(
            f"the cell {name} has no switches to turn off; use {' or '.join(_SWITCH_CELLS)}."
        )
    return _CELLS[name](input_width, width)


def cell_switches(name: str) -> tuple[str, ...]:
    """Names of the cell's switches, by number; empty if it has none."""
    return _SWITCH_CELLS[name].switches if name in _SWITCH_CELLS else ()
