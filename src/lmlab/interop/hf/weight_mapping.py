"""Name tables: which weight of ours is which of theirs, read in both directions.

A table is a list of pairs, our name beside theirs, each with the way from one to the other: a
matrix stored the other way round, queries, keys and values joined into one, rows that only one side
has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lmlab.core.errors import UserError


class TensorMapping:
    """From tensors of theirs to one of ours, and back."""

    def to_ours(self, theirs: Sequence[Tensor]) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not define to_ours")

    def to_theirs(self, ours: Tensor, count: int) -> list[Tensor]:
        """The `count` tensors of theirs that make up one of ours."""
        raise TypeError(f"{type(self).__name__} does not define to_theirs")


class Identity(TensorMapping):
    """One tensor, as it is."""

    def to_ours(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0]

    def to_theirs(self, ours: Tensor, count: int) -> list[Tensor]:
        return [ours]


class Transpose(TensorMapping):
    """A matrix stored the other way round: GPT-2's Conv1D holds (inputs, outputs)."""

    def to_ours(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0].t()

    def to_theirs(self, ours: Tensor, count: int) -> list[Tensor]:
        return [ours.t()]


class Concatenate(TensorMapping):
    """Tensors of equal shape, one below the other: queries, keys and values in one matrix."""

    def to_ours(self, theirs: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(theirs))

    def to_theirs(self, ours: Tensor, count: int) -> list[Tensor]:
        return list(ours.chunk(count))


@dataclass(frozen=True)
class ResizeRows(TensorMapping):
    """A table with `theirs` rows there and `ours` here, of which row 0 is their row `first`.

    Rows that one side alone has (positions that stand before the first, vectors of no token) are
    dropped on the way, and are zero on the way back.
    """

    ours: int
    theirs: int
    first: int = 0
    swapped_ids: tuple[int, int] | None = None
    """Two rows that have changed places."""

    def to_ours(self, theirs: Sequence[Tensor]) -> Tensor:
        [table] = theirs
        if len(table) != self.theirs:
            raise ValueError(f"has {len(table)} rows, and config.json says {self.theirs}")
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
    """The table cut, or filled up with zeros, to that many rows."""
    missing = max(0, rows - len(table))
    return torch.cat([table[:rows], table.new_zeros(missing, *table.shape[1:])])


@dataclass(frozen=True)
class Reshape(TensorMapping):
    """One tensor in another shape, after its axes were put in another order."""

    ours: tuple[int, ...]
    """The shape here."""
    theirs: tuple[int, ...]
    """The shape there."""
    order: tuple[int, ...] = ()
    """Their axes in the order in which ours, flattened, run through them; none for as they are."""

    def to_ours(self, theirs: Sequence[Tensor]) -> Tensor:
        [value] = theirs
        if value.shape != self.theirs:
            shape = tuple(value.shape)
            raise ValueError(f"is of shape {shape}, and config.json says {self.theirs}")
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
    """What they keep with one more axis of size 1 at the front; the rest goes by `way`."""

    mapping: TensorMapping

    def to_ours(self, theirs: Sequence[Tensor]) -> Tensor:
        return self.mapping.to_ours([theirs[0].squeeze(0)])

    def to_theirs(self, ours: Tensor, count: int) -> list[Tensor]:
        return [self.mapping.to_theirs(ours, 1)[0][None]]


@dataclass(frozen=True)
class ConcatenateMapped(TensorMapping):
    """Tensors that go each by its own way, and are then joined."""

    mapping: TensorMapping

    def to_ours(self, theirs: Sequence[Tensor]) -> Tensor:
        return torch.cat([self.mapping.to_ours([value]) for value in theirs])

    def to_theirs(self, ours: Tensor, count: int) -> list[Tensor]:
        return [self.mapping.to_theirs(part, 1)[0] for part in ours.chunk(count)]


IDENTITY, TRANSPOSE, CONCATENATE = Identity(), Transpose(), Concatenate()


@dataclass(frozen=True)
class WeightPair:
    """A weight of ours, and the one or several of theirs that it is."""

    ours: str
    theirs: tuple[str, ...]
    mapping: TensorMapping = IDENTITY


def weight_pair(ours: str, theirs: str, way: TensorMapping = IDENTITY) -> WeightPair:
    """A weight of ours that is one of theirs."""
    return WeightPair(ours, (theirs,), way)


def linear_pairs(
    ours: str, theirs: str, way: TensorMapping = IDENTITY, *, bias: bool = True
) -> Iterator[WeightPair]:
    """A linear map or a norm: its weight, which goes by `way`, and its bias."""
    yield weight_pair(f"{ours}.weight", f"{theirs}.weight", way)
    if bias:
        yield weight_pair(f"{ours}.bias", f"{theirs}.bias")


def concatenated_pairs(
    ours: str, theirs: Iterable[str], *, bias: bool = True
) -> Iterator[WeightPair]:
    """A linear map of ours that is several of theirs, one below the other."""
    names = tuple(theirs)
    for kind in ("weight", "bias") if bias else ("weight",):
        yield WeightPair(f"{ours}.{kind}", tuple(f"{name}.{kind}" for name in names), CONCATENATE)


@dataclass(frozen=True)
class NameTable:
    """All pairs of one checkpoint, and on each side the further names of shared weights."""

    pairs: tuple[WeightPair, ...]
    our_tied_names: Mapping[str, str]
    """Our name → the one in `pairs` that is the same weight."""
    their_tied_names: Mapping[str, str]
    """Their name → the one in `pairs` that is the same weight; a checkpoint need not hold it."""

    def without_tied_names(self, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Their weights by the names in `pairs`: which of a shared one's names is kept, varies."""
        found = {name: value for name, value in theirs.items() if name not in self.their_tied_names}
        for name, kept in self.their_tied_names.items():
            value = theirs.get(name)
            if value is not None and not torch.equal(found.setdefault(kept, value), value):
                raise UserError(
                    f"{name} and {kept} should be one weight shared, by config.json, and they "
                    "differ; lmlab has no place for both."
                )
        return found

    def to_ours(self, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our state of their weights, which are those that `pairs` names."""
        found = {}
        for each in self.pairs:
            try:
                value = each.mapping.to_ours([theirs[name] for name in each.theirs])
            except (RuntimeError, ValueError) as error:
                names, reason = " and ".join(each.theirs), str(error).splitlines()[0]
                raise UserError(
                    f"the weights do not fit config.json: {names} {reason}; restore the pair that "
                    "belongs together."
                ) from error
            found[each.ours] = value.contiguous()
        copies = {name: kept for name, kept in self.our_tied_names.items() if kept in found}
        return found | {name: found[kept] for name, kept in copies.items()}

    def to_theirs(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Their weights of our state, shared ones once."""
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
        """In the order of the table, without copies."""
        return [name for each in self.pairs for name in each.theirs]

    def restricted_to(self, theirs: Iterable[str]) -> NameTable:
        """The part of the table of which they have the weights."""
        there = set(theirs)
        kept = tuple(each for each in self.pairs if there.issuperset(each.theirs))
        return replace(self, pairs=kept)
