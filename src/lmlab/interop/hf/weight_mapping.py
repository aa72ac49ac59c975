"""Weight mapping: name tables between our weights and a checkpoint's, in both directions.

A table is a list of pairs, our name and theirs, each with a tensor mapping: transposed matrices,
concatenated query, key and value projections, rows that only one side has.
"""

from __future__ import annotations

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


def read_whole_number(config: Mapping[str, Any], theirs: str, default: int) -> int:
    """An integer entry of their config.json."""
    return int(ConfigField(theirs, theirs, default).read_from(config))


def activation_field(theirs: str, default: str) -> ConfigField:
    """The activation of the feed-forward layers."""
    return ConfigField("activation", theirs, default, from_hf_activation, ACTIVATIONS.__getitem__)


def from_hf_activation(name: Any) -> str:
    known = {theirs: ours for ours, theirs in ACTIVATIONS.items()} | OTHER_ACTIVATIONS
    if name not in known:
        raise UserError(
            f"the checkpoint's activation must be one of {', '.join(sorted(known))}, got {name!r}."
        )
    return known[name]


def resolve_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Canonical settings: a default size, given as 0 or explicitly, gets one spelling."""
    width, found = settings["width"], dict(settings)
    found["ffn_width"] = settings["ffn_width"] or 4 * width
    if settings["head_width"] * settings["heads"] == width:
        found["head_width"] = 0
    if settings["embedding_width"] == width:
        found["embedding_width"] = 0
    return found


def to_json_value(value: Any) -> Any:
    """Convert to a JSON value (tuples become lists)."""
    return list(value) if isinstance(value, tuple) else value


def to_set_value(value: Any) -> str:
    """Format as a value for `--set`."""
    if isinstance(value, (tuple, list)):
        return ",".join(map(to_set_value, value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


class TensorMapping:
    """Mapping from their tensors to one of ours, and back."""

    def to_ours(self, theirs: Sequence[Tensor]) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not define to_ours")

    def to_theirs(self, ours: Tensor, count: int) -> list[Tensor]:
        """Split one of our tensors into `count` of theirs."""
        raise TypeError(f"{type(self).__name__} does not define to_theirs")


class Identity(TensorMapping):
    """Identity mapping of one tensor."""

    def to_ours(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0]

    def to_theirs(self, ours: Tensor, count: int) -> list[Tensor]:
        return [ours]


class Transpose(TensorMapping):
    """Transposed matrix: GPT-2's Conv1D stores (inputs, outputs)."""

    def to_ours(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0].t()

    def to_theirs(self, ours: Tensor, count: int) -> list[Tensor]:
        return [ours.t()]


class Concatenate(TensorMapping):
    """Concatenation of tensors of equal shape: query, key and value projections in one matrix."""

    def to_ours(self, theirs: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(theirs))

    def to_theirs(self, ours: Tensor, count: int) -> list[Tensor]:
        return list(ours.chunk(count))


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

    def to_ours(self, theirs: Sequence[Tensor]) -> Tensor:
        [table] = theirs
        if len(table) != self.theirs:
            raise ValueError(f"has {len(table)} rows, but config.json declares {self.theirs}")
        return self._exchanged(_sized(table[self.first :], self.ours))

    def to_theirs(self, ours: Tensor, count: int) -> list[Tensor]:
        before = ours.new_zeros(self.first, *ours.shape[1:])
        return [_sized(torch.cat([before, self._exchanged(ours)]), self.theirs)]

    def _exchanged(self, table: Tensor) -> Tensor:
        if self.swapped_ids is None:
            return table
        order = list(range(len(table)))
        first, second = self.swapped_ids
        order[first], order[second] = second, first
        return table[order]


def _sized(table: Tensor, rows: int) -> Tensor:
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

    def to_ours(self, theirs: Sequence[Tensor]) -> Tensor:
        [value] = theirs
        if value.shape != self.theirs:
            shape = tuple(value.shape)
            raise ValueError(f"is of shape {shape}, but config.json declares {self.theirs}")
        return value.permute(self._order).reshape(self.ours)

    def to_theirs(self, ours: Tensor, count: int) -> list[Tensor]:
        order = self._order
        turned = ours.reshape([self.theirs[axis] for axis in order])
        return [turned.permute([order.index(axis) for axis in range(len(order))])]

    @property
    def _order(self) -> tuple[int, ...]:
        return self.order or tuple(range(len(self.theirs)))


@dataclass(frozen=True)
class Unsqueeze(TensorMapping):
    """Adds a leading axis of size 1 on their side, around another `mapping`."""

    mapping: TensorMapping

    def to_ours(self, theirs: Sequence[Tensor]) -> Tensor:
        return self.mapping.to_ours([theirs[0].squeeze(0)])

    def to_theirs(self, ours: Tensor, count: int) -> list[Tensor]:
        return [self.mapping.to_theirs(ours, 1)[0][None]]


@dataclass(frozen=True)
class ConcatenateMapped(TensorMapping):
    """Concatenation of tensors that are each mapped by `mapping`."""

    mapping: TensorMapping

    def to_ours(self, theirs: Sequence[Tensor]) -> Tensor:
        return torch.cat([self.mapping.to_ours([value]) for value in theirs])

    def to_theirs(self, ours: Tensor, count: int) -> list[Tensor]:
        return [self.mapping.to_theirs(part, 1)[0] for part in ours.chunk(count)]


IDENTITY, TRANSPOSE, CONCATENATE = Identity(), Transpose(), Concatenate()


@dataclass(frozen=True)
class WeightPair:
    """One of our weights, and the one or several of theirs it consists of."""

    ours: str
    theirs: tuple[str, ...]
    mapping: TensorMapping = IDENTITY


def weight_pair(ours: str, theirs: str, way: TensorMapping = IDENTITY) -> WeightPair:
    """One of our weights that is one of theirs."""
    return WeightPair(ours, (theirs,), way)


def linear_pairs(
    ours: str, theirs: str, way: TensorMapping = IDENTITY, *, bias: bool = True
) -> Iterator[WeightPair]:
    """A linear layer or norm: its weight, mapped by `way`, and its bias."""
    yield weight_pair(f"{ours}.weight", f"{theirs}.weight", way)
    if bias:
        yield weight_pair(f"{ours}.bias", f"{theirs}.bias")


def concatenated_pairs(
    ours: str, theirs: Iterable[str], *, bias: bool = True
) -> Iterator[WeightPair]:
    """A linear layer of ours that concatenates several of theirs."""
    names = tuple(theirs)
    for kind in ("weight", "bias") if bias else ("weight",):
        yield WeightPair(f"{ours}.{kind}", tuple(f"{name}.{kind}" for name in names), CONCATENATE)


@dataclass(frozen=True)
class NameTable:
    """All weight pairs of a checkpoint, and on each side the further names of tied weights."""

    pairs: tuple[WeightPair, ...]
    our_tied_names: Mapping[str, str]
    """Our name → the name in `pairs` of the same weight."""
    their_tied_names: Mapping[str, str]
    """Their name → the name in `pairs` of the same weight; may be absent from a checkpoint."""

    def without_tied_names(self, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Their weights by the names in `pairs`: which name of a tied weight is stored varies."""
        found = {name: value for name, value in theirs.items() if name not in self.their_tied_names}
        for name, kept in self.their_tied_names.items():
            value = theirs.get(name)
            if value is not None and not torch.equal(found.setdefault(kept, value), value):
                raise UserError(
                    f"{name} and {kept} should be one shared weight by config.json, but they "
                    "differ; lmlab can't store both."
                )
        return found

    def to_ours(self, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert their weights, those named in `pairs`, to our state dict."""
        found = {}
        for each in self.pairs:
            try:
                value = each.mapping.to_ours([theirs[name] for name in each.theirs])
            except (RuntimeError, ValueError) as error:
                names, reason = " and ".join(each.theirs), str(error).splitlines()[0]
                raise UserError(
                    f"the weights do not match config.json: {names} {reason}; restore the "
                    "matching pair."
                ) from error
            found[each.ours] = value.contiguous()
        copies = {name: kept for name, kept in self.our_tied_names.items() if kept in found}
        return found | {name: found[kept] for name, kept in copies.items()}

    def to_theirs(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert our state dict to their weights, tied ones once."""
        found: dict[str, Tensor] = {}
        for each in self.pairs:
            values = each.mapping.to_theirs(ours[each.ours], len(each.theirs))
            found |= {
                name: value.contiguous() for name, value in zip(each.theirs, values, strict=True)
            }
        return found

    @property
    def our_names(self) -> set[str]:
        return {each.ours for each in self.pairs} | set(self.our_tied_names)

    @property
    def their_names(self) -> list[str]:
        """Their names in table order, without duplicates."""
        return [name for each in self.pairs for name in each.theirs]

    def restricted_to(self, theirs: Iterable[str]) -> NameTable:
        """The part of the table whose weights they have."""
        there = set(theirs)
        kept = tuple(each for each in self.pairs if there.issuperset(each.theirs))
        return replace(self, pairs=kept)
