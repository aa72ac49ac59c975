"""The search space of a sweep: each varied setting is a choice of values or a range."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

from lmlab.core.errors import UserError, unknown_name

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Point: TypeAlias = dict[str, Any]
"""A value for each varied setting, by name."""
LOG_RATIO = 20
RANGE_KEYS = ("low", "high", "log", "step")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One of several values, in no order."""

    name: str
    values: tuple[Any, ...]

    @property
    def size(self) -> float:
        """How many values it has."""
        return len(self.values)

    @property
    def log(self) -> bool:
        """Whether it has positive numbers that are far apart, such as 1e-4, 1e-3, 1e-2."""
        numeric = all(type(value) in (int, float) and value > 0 for value in self.values)
        return numeric and max(self.values) > LOG_RATIO * min(self.values)

    def contains(self, value: Any) -> bool:
        """Whether it is one of the values."""
        return value in self.values

    def grid(self) -> tuple[Any, ...]:
        """All values."""
        return self.values

    def probes(self) -> tuple[Any, ...]:
        """The values that are checked before anything is trained."""
        return self.values

    def distribution(self) -> BaseDistribution:
        """Optuna's distribution, over indices into the values, which may be lists."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(range(len(self.values)))

    def encode(self, value: Any) -> Any:
        """A value as Optuna knows it."""
        return self.values.index(value)

    def decode(self, value: Any) -> Any:
        """The value that Optuna means."""
        return self.values[value]


@dataclass(frozen=True, kw_only=True)
class Range:
    """A number from low to high, both included; uniform, or uniform in its logarithm."""

    name: str
    low: float
    high: float
    step: float | None = None
    log: bool = False
    whole: bool = False
    """Whether it is a whole number."""

    @property
    def size(self) -> float:
        """How many values it has; infinite for a continuous range."""
        spacing = self.spacing
        return math.inf if spacing is None else math.floor((self.high - self.low) / spacing) + 1

    @property
    def spacing(self) -> float | None:
        """The distance of neighbouring values; None if it is continuous."""
        return 1 if self.step is None and self.whole else self.step

    def contains(self, value: Any) -> bool:
        """Whether a value is a number of the range."""
        return (isinstance(value, int) or (isinstance(value, float) and not self.whole)) and (
            self.low <= value <= self.high
        )

    def grid(self) -> tuple[Any, ...]:
        """All values; a UserError where there are infinitely many."""
        if self.spacing is None:
            raise UserError(
                f"a grid needs a list of values for {self.name}, or a step; give one, or search "
                "random or tpe."
            )
        low, step = Decimal(str(self.low)), Decimal(str(self.spacing))
        count = int((Decimal(str(self.high)) - low) / step) + 1
        numbers = (low + index * step for index in range(count))
        return tuple(int(number) if self.whole else float(number) for number in numbers)

    def probes(self) -> tuple[Any, ...]:
        """The values that are checked before anything is trained."""
        return (self.low, self.high)

    def distribution(self) -> BaseDistribution:
        """Optuna's distribution."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.whole:
            return IntDistribution(
                int(self.low), int(self.high), log=self.log, step=int(self.step or 1)
            )
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def encode(self, value: Any) -> Any:
        """A value as Optuna knows it."""
        return value

    def decode(self, value: Any) -> Any:
        """The value that Optuna means."""
        return value


Dimension: TypeAlias = Choice | Range


def parse_dimension(name: str, spec: Any) -> Dimension:
    """A dimension from a spec: a list is a choice, `{low, high, log, step}` a range."""
    if isinstance(spec, Mapping):
        return _parse_range(name, spec)
    if not isinstance(spec, Sequence) or isinstance(spec, str):
        raise UserError(
            f"space gives {name} as {spec!r}; give a list of values, or a range "
            "{low: …, high: …}; a single value belongs under settings."
        )
    if not spec:
        raise UserError(f"the list of {name} in the space is empty; give the values to try.")
    texts = [json.dumps(value) for value in spec]
    twice = next((text for text in texts if texts.count(text) > 1), None)
    if twice is not None:
        raise UserError(f"the list of {name} in the space has {twice} twice; give it once.")
    return Choice(name=name, values=tuple(spec))


def _parse_range(name: str, spec: Mapping[str, Any]) -> Range:
    for key in spec:
        if key not in RANGE_KEYS:
            raise unknown_name(f"part of the range of {name}", str(key), RANGE_KEYS)
    for key in ("low", "high"):
        if key not in spec:
            raise UserError(f"the range of {name} has no {key}; give low and high.")
    numbers = {key: spec[key] for key in ("low", "high", "step") if spec.get(key) is not None}
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _finite(value):
            raise UserError(f"{key} of the range of {name} must be a number, got {value!r}.")
    log = spec.get("log", False)
    if not isinstance(log, bool):
        raise UserError(f"log of the range of {name} must be true or false, got {log!r}.")
    low, high, step = numbers["low"], numbers["high"], numbers.get("step")
    problem = _range_problem(low, high, step, log)
    if problem:
        raise UserError(f"the range of {name} is impossible: {problem}.")
    whole = all(isinstance(value, int) for value in numbers.values())
    return Range(name=name, low=low, high=high, step=step, log=log, whole=whole)


def _finite(value: float) -> bool:
    return isinstance(value, int) or math.isfinite(value)


def _range_problem(low: float, high: float, step: float | None, log: bool) -> str:
    if low >= high:
        return f"low must be below high, got {low} and {high}"
    if log and low <= 0:
        return f"a logarithmic one needs low above 0, got {low}"
    if log and step is not None:
        return "log and step exclude each other; remove one"
    if step is not None and not 0 < step <= high - low:
        return f"step must be above 0 and at most high - low, got {step}"
    return ""


def grid_points(space: Sequence[Dimension]) -> Iterator[Point]:
    """All points of the product, the last dimension varying fastest."""
    names = [dimension.name for dimension in space]
    for values in product(*(dimension.grid() for dimension in space)):
        yield dict(zip(names, values, strict=True))


def space_size(space: Sequence[Dimension]) -> float:
    """How many points it has; infinite with a continuous range."""
    return math.prod(dimension.size for dimension in space)


def describe_point(point: Mapping[str, Any]) -> str:
    """A point in words: `width=64, learning_rate=0.003`."""
    return ", ".join(f"{name}={short_value(value)}" for name, value in point.items())


def short_value(value: Any) -> str:
    """A value for tables: numbers with four significant digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)
