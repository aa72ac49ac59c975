"""Mapping of config.json fields and weights between our systems and Hugging Face checkpoints.

A table is a list of pairs, our name and theirs, each with a tensor mapping: transposed matrices,
concatenated query, key and value projections, rows that only one side has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from lmlab.core.errors import UserError

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu-tanh": "gelu_new",
    "relu": "relu",
    "silu": "silu",
    "tanh": "tanh",
}
"""Our names of activations and theirs; some have several in transformers."""
OTHER_ACTIVATIONS = {
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_python": "gelu",
    "swish": "silu",
}


@dataclass(frozen=True)
class ConfigField:
    """A setting of ours and the config.json entry with the same meaning."""

    ours: str
    theirs: str
    default: Any
    """Value if config.json lacks the entry."""
    read: Callable[[Any], Any] = field(default=lambda value: value)
    """From their value to ours."""
    write: Callable[[Any], Any] = field(default=lambda value: value)
    """From our value to theirs."""

    def read_from(self, config: Mapping[str, Any]) -> Any:
        """Our value of the entry in their config.json."""
        value = config.get(self.theirs)
        value = self.default if value is None else value
        kinds = (int, float) if isinstance(self.default, float) else (type(self.default),)
        if type(value) not in kinds:
            raise UserError(
                f"{self.theirs} in the checkpoint's config.json must be a value such as "
                f"{self.default!r}, got {value!r}."
            )
        return self.read(value)


def read_whole_number(config: Mapping[str, Any], key: str, default: int) -> int:
    """An integer entry of their config.json."""
    return int(ConfigField(key, key, default).read_from(config))


def activation_field(key: str, default: str) -> ConfigField:
    """The activation of the feed-forward layers."""
    return ConfigField("activation", key, default, from_hf_activation, ACTIVATIONS.__getitem__)


def from_hf_activation(name: Any) -> str:
    names = {hf_name: name_ for name_, hf_name in ACTIVATIONS.items()} | OTHER_ACTIVATIONS
    if name not in names:
        raise UserError(
            f"the checkpoint's activation must be one of {', '.join(sorted(names))}, got {name!r}."
        )
    return names[name]


def resolve_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Canonical settings: a default size, given as 0 or explicitly, gets one spelling.

    A plug-in's system may have none of these settings.
    """
    width, resolved = settings.get("width"), dict(settings)
    if settings.get("ffn_width") == 0:
        resolved["ffn_width"] = 4 * settings["width"]
    if "head_width" in settings and settings["head_width"] * settings["heads"] == width:
        resolved["head_width"] = 0
    if "embedding_width" in settings and settings["embedding_width"] == width:
        resolved["embedding_width"] = 0
    return resolved


def to_json_value(value: Any) -> Any:
    """Convert to a JSON value (tuples become lists)."""
    return list(value) if isinstance(value, tuple) else value


def to_set_value(value: Any) -> str:
    """Format as a value for `--set`."""
    if isinstance(value, (tuple, list)):
        return ",".join(map(to_set_value, value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


class TensorMapping(ABC):
    """Mapping from their tensors to one of ours, and back."""

    @abstractmethod
    def to_ours(self, tensors: Sequence[Tensor]) -> Tensor: ...

    @abstractmethod
    def to_theirs(self, tensor: Tensor, count: int) -> list[Tensor]:
        """Split one of our tensors into `count` of theirs."""


class Identity(TensorMapping):
    """Identity mapping of one tensor."""

    def to_ours(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0]

    def to_theirs(self, tensor: Tensor, count: int) -> list[Tensor]:
        return [tensor]


class Transpose(TensorMapping):
    """Transposed matrix: GPT-2's Conv1D stores (inputs, outputs)."""

    def to_ours(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0].t()

    def to_theirs(self, tensor: Tensor, count: int) -> list[Tensor]:
        return [tensor.t()]


@dataclass(frozen=True)
class ResizeRows(TensorMapping):
    """Embedding table of `theirs` rows mapped to `ours` rows, from their row `first` on.

    Rows that only one side has (offset positions, unused token ids) are dropped in one direction
    and zero in the other.
    """

    ours: int
    theirs: int
    first: int = 0
    swapped_ids: tuple[int, int] | None = None
    """Two rows that are swapped."""

    def to_ours(self, tensors: Sequence[Tensor]) -> Tensor:
        [table] = tensors
        if len(table) != self.theirs:
            raise ValueError(f"has {len(table)} rows, but config.json declares {self.theirs}")
        return self._swap_rows(_resize(table[self.first :], self.ours))

    def to_theirs(self, tensor: Tensor, count: int) -> list[Tensor]:
        before = tensor.new_zeros(self.first, *tensor.shape[1:])
        return [_resize(torch.cat([before, self._swap_rows(tensor)]), self.theirs)]

    def _swap_rows(self, table: Tensor) -> Tensor:
        if self.swapped_ids is None:
            return table
        order = list(range(len(table)))
        first, second = self.swapped_ids
        order[first], order[second] = second, first
        return table[order]


def _resize(table: Tensor, rows: int) -> Tensor:
    """The table truncated or zero-padded to that many rows."""
    missing = max(0, rows - len(table))
    return torch.cat([table[:rows], table.new_zeros(missing, *table.shape[1:])])


@dataclass(frozen=True)
class Reshape(TensorMapping):
    """Reshape of one tensor after a permutation of its axes."""

    ours: tuple[int, ...]
    """Our shape."""
    theirs: tuple[int, ...]
    """Their shape."""
    order: tuple[int, ...] = ()
    """Permutation of their axes before flattening into our shape; empty for none."""

    def to_ours(self, tensors: Sequence[Tensor]) -> Tensor:
        [value] = tensors
        if value.shape != self.theirs:
            shape = tuple(value.shape)
            raise ValueError(f"is of shape {shape}, but config.json declares {self.theirs}")
        return value.permute(self._order).reshape(self.ours)

    def to_theirs(self, tensor: Tensor, count: int) -> list[Tensor]:
        order = self._order
        permuted = tensor.reshape([self.theirs[axis] for axis in order])
        return [permuted.permute([order.index(axis) for axis in range(len(order))])]

    @property
    def _order(self) -> tuple[int, ...]:
        return self.order or tuple(range(len(self.theirs)))


@dataclass(frozen=True)
class Unsqueeze(TensorMapping):
    """Adds a leading axis of size 1 on their side, around another `mapping`."""

    mapping: TensorMapping

    def to_ours(self, tensors: Sequence[Tensor]) -> Tensor:
        return self.mapping.to_ours([tensors[0].squeeze(0)])

    def to_theirs(self, tensor: Tensor, count: int) -> list[Tensor]:
        return [self.mapping.to_theirs(tensor, 1)[0][None]]


@dataclass(frozen=True)
class ConcatenateMapped(TensorMapping):
    """Concatenation of tensors of equal shape, each mapped by `mapping`: q, k, v in one matrix."""

    mapping: TensorMapping

    def to_ours(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([self.mapping.to_ours([value]) for value in tensors])

    def to_theirs(self, tensor: Tensor, count: int) -> list[Tensor]:
        return [self.mapping.to_theirs(part, 1)[0] for part in tensor.chunk(count)]


@dataclass(frozen=True)
class ConcatenateRows(TensorMapping):
    """Concatenation of tensors with these numbers of rows: queries, and keys and values of fewer
    heads."""

    rows: tuple[int, ...]

    def to_ours(self, tensors: Sequence[Tensor]) -> Tensor:
        rows = tuple(len(value) for value in tensors)
        if rows != self.rows:
            raise ValueError(f"have {rows} rows, but config.json declares {self.rows}")
        return torch.cat(list(tensors))

    def to_theirs(self, tensor: Tensor, count: int) -> list[Tensor]:
        return list(tensor.split(self.rows))


IDENTITY, TRANSPOSE = Identity(), Transpose()
CONCATENATE = ConcatenateMapped(IDENTITY)


@dataclass(frozen=True)
class WeightPair:
    """One of our weights, and the one or several of theirs it consists of."""

    ours: str
    theirs: tuple[str, ...]
    mapping: TensorMapping = IDENTITY


def weight_pair(name: str, hf_name: str, mapping: TensorMapping = IDENTITY) -> WeightPair:
    """One of our weights that is one of theirs."""
    return WeightPair(name, (hf_name,), mapping)


def linear_pairs(
    key: str, hf_key: str, mapping: TensorMapping = IDENTITY, *, bias: bool = True
) -> Iterator[WeightPair]:
    """A linear layer or norm: its weight, mapped by `mapping`, and its bias."""
    yield weight_pair(f"{key}.weight", f"{hf_key}.weight", mapping)
    if bias:
        yield weight_pair(f"{key}.bias", f"{hf_key}.bias")


def concatenated_pairs(
    key: str, hf_keys: Iterable[str], mapping: TensorMapping = CONCATENATE, *, bias: bool = True
) -> Iterator[WeightPair]:
    """A linear layer of ours that concatenates several of theirs."""
    names = tuple(hf_keys)
    for kind in ("weight", "bias") if bias else ("weight",):
        yield WeightPair(f"{key}.{kind}", tuple(f"{name}.{kind}" for name in names), mapping)


@dataclass(frozen=True)
class NameTable:
    """All weight pairs of a checkpoint, and on each side the further names of tied weights."""

    pairs: tuple[WeightPair, ...]
    our_tied_names: Mapping[str, str]
    """Our name → the name in `pairs` of the same weight."""
    their_tied_names: Mapping[str, str]
    """Their name → the name in `pairs` of the same weight; may be absent from a checkpoint."""

    def without_tied_names(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Their weights by the names in `pairs`: which name of a tied weight is stored varies."""
        weights = {
            name: value for name, value in tensors.items() if name not in self.their_tied_names
        }
        for name, stored in self.their_tied_names.items():
            value = tensors.get(name)
            if value is not None and not torch.equal(weights.setdefault(stored, value), value):
                raise UserError(
                    f"{name} and {stored} should be one shared weight by config.json, but they "
                    "differ; lmlab can't store both."
                )
        return weights

    def to_ours(self, hf_weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert their weights, those named in `pairs`, to our state dict."""
        state = {}
        for pair in self.pairs:
            try:
                value = pair.mapping.to_ours([hf_weights[name] for name in pair.theirs])
            except (RuntimeError, ValueError) as error:
                names, reason = " and ".join(pair.theirs), str(error).splitlines()[0]
                raise UserError(
                    f"the weights do not match config.json: {names} {reason}; restore the "
                    "matching pair."
                ) from error
            state[pair.ours] = value.contiguous()
        copies = {name: stored for name, stored in self.our_tied_names.items() if stored in state}
        return state | {name: state[stored] for name, stored in copies.items()}

    def to_theirs(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert our state dict to their weights, tied ones once."""
        hf_weights: dict[str, Tensor] = {}
        for pair in self.pairs:
            values = pair.mapping.to_theirs(state[pair.ours], len(pair.theirs))
            hf_weights |= {
                name: value.contiguous() for name, value in zip(pair.theirs, values, strict=True)
            }
        return hf_weights

    @property
    def our_names(self) -> set[str]:
        return {pair.ours for pair in self.pairs} | set(self.our_tied_names)

    @property
    def their_names(self) -> list[str]:
        """Their names in table order, without duplicates."""
        return [name for pair in self.pairs for name in pair.theirs]

    def restricted_to(self, names: Iterable[str]) -> NameTable:
        """The part of the table whose weights they have."""
        available = set(names)
        pairs = tuple(pair for pair in self.pairs if available.issuperset(pair.theirs))
        return replace(self, pairs=pairs)
