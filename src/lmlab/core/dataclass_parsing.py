"""Dataclasses from untrusted values: each field is checked against its type annotation."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

DataclassT = TypeVar("DataclassT")

TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
MAX_INTEGER = 2**63 - 1
"""Larger numbers fit no tensor's shape."""


def parse_dataclass(kind: type[DataclassT], values: object) -> DataclassT:
    """A dataclass from a JSON object; a ValueError names a missing or mistyped field."""
    assert is_dataclass(kind)
    if not isinstance(values, Mapping):
        raise ValueError(f"expected an object, got {type(values).__name__}")
    hints = get_type_hints(kind)
    known = {spec.name for spec in fields(kind) if spec.init}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"there is no field {name!r}")
        check_type(name, value, hints[name])
    try:
        return kind(**values)
    except TypeError as error:  # a field without a default is missing
        raise ValueError(str(error)) from None


def check_type(name: str, value: object, hint: Any) -> None:
    """Raise a ValueError if a value is not of the annotated type.

    Integers are accepted as floats, lists as tuples. Annotations other than numbers, strings,
    literals, tuples, lists, dictionaries and unions of them are not checked.
    """
    if not _fits(value, hint):
        raise ValueError(f"{name} must be {describe_type(hint)}, got {_shown(value)}")


def _fits(value: object, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, option) for option in inner)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in inner)
    if origin is tuple and inner[-1:] == (Ellipsis,):
        return isinstance(value, (tuple, list)) and all(_fits(each, inner[0]) for each in value)
    if origin is tuple:
        return (
            isinstance(value, (tuple, list))
            and len(value) == len(inner)
            and all(_fits(each, part) for each, part in zip(value, inner, strict=True))
        )
    if origin is list:
        return isinstance(value, list) and all(_fits(each, inner[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            _fits(key, inner[0]) and _fits(each, inner[1]) for key, each in value.items()
        )
    return _fits_plain(value, hint)


def _fits_plain(value: object, hint: Any) -> bool:
    if hint in (None, type(None)):
        return value is None
    if hint in (int, float):
        if isinstance(value, int) and not isinstance(value, bool):
            return abs(value) <= MAX_INTEGER
        return hint is float and isinstance(value, float)
    if hint in (bool, str):
        return isinstance(value, hint)
    return True


def describe_type(hint: Any) -> str:
    """A type annotation in words."""
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(describe_type(option) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if get_origin(hint) in (tuple, list):
        return "a list, each " + describe_type(get_args(hint)[0])
    if get_origin(hint) is dict:
        return "an object"
    return TYPE_NAMES.get(hint, "none" if hint in (None, type(None)) else str(hint))


def _shown(value: object) -> str:
    shown = repr(value) if not isinstance(value, int) or abs(value) <= MAX_INTEGER else "too large"
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
