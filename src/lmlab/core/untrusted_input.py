"""Validation of untrusted input: JSON, typed records, gzip, texts, integers and seeds.

A damaged file is a ValueError with a short reason, a wrong argument a UserError.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
import types
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from lmlab.core.errors import UserError
from lmlab.core.limits import limit, limit_exceeded_error

DataclassT = TypeVar("DataclassT")

TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
MAX_INTEGER = 2**63 - 1
"""Larger numbers fit no tensor's shape."""


def check_path(path: object, called: str) -> None:
    """A UserError if an argument of a verb is no path."""
    if not isinstance(path, (str, Path)):
        raise UserError(f"{called} must be a path, got {type(path).__name__}.")


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
        raise ValueError(f"{name} must be {describe_type(hint)}, got {_describe_value(value)}")


def _fits(value: object, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, option) for option in inner)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in inner)
    if origin is tuple and inner[-1:] == (Ellipsis,):
        return isinstance(value, (tuple, list)) and all(_fits(item, inner[0]) for item in value)
    if origin is tuple:
        return (
            isinstance(value, (tuple, list))
            and len(value) == len(inner)
            and all(_fits(item, part) for item, part in zip(value, inner, strict=True))
        )
    if origin is list:
        return isinstance(value, list) and all(_fits(item, inner[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            _fits(key, inner[0]) and _fits(item, inner[1]) for key, item in value.items()
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


def _describe_value(value: object) -> str:
    shown = repr(value) if not isinstance(value, int) or abs(value) <= MAX_INTEGER else "too large"
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def unpack_gzip(packed: bytes, *, name: str) -> bytes:
    """The unpacked bytes, at most the limit `unpacked`; raises a ValueError if damaged."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            content = file.read(limit("unpacked") + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(str(error)) from None
    if len(content) > limit("unpacked"):
        raise limit_exceeded_error("unpacked", f"the unpacked bytes of {name} must be")
    return content


def check_text(text: object, name: str = "a text") -> str:
    """The text itself; raises a UserError if it is no string, or has half of a surrogate pair.

    The latter is what a byte that is not UTF-8 becomes on the command line.
    """
    if not isinstance(text, str):
        raise UserError(f"{name} must be a string, got {type(text).__name__} ({repr(text)[:40]}).")
    try:
        text.encode()
    except UnicodeEncodeError:
        shown = text.encode(errors="backslashreplace").decode()[:60]
        raise UserError(f"the text {shown!r} is not UTF-8; convert it first.") from None
    return text


def checked_texts(texts: Iterable[object]) -> Iterator[str]:
    """Texts one by one, each validated; an error gives the text's number."""
    for number, text in enumerate(texts, 1):
        yield check_text(text, f"text {number}")


def check_texts(texts: object, verb: str, *, noun: str = "text") -> None:
    """Raise a UserError if a caller gives one text, or no texts at all, instead of several."""
    if isinstance(texts, str):
        raise UserError(f"{verb} takes a list of {noun}s, got one {noun}; put it in a list.")
    if not isinstance(texts, Iterable):
        raise UserError(f"{verb} takes a list of {noun}s, got {type(texts).__name__}.")


MAX_SEED = 2**31 - 1


def check_seed(seed: int) -> int:
    """The seed itself; raises a UserError unless numpy, torch and FAISS all accept it."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise UserError(f"seed must be from 0 to {MAX_SEED}, got {seed!r}; try 0.")
    return seed


MAX_DIGITS = 18
"""So that the number fits in 64 bits."""


def parse_integer(text: str | bytes) -> int | None:
    """The number that ASCII digits spell; None for anything else, and for more than 18 digits.

    `str.isdigit` is true of "²", which `int` rejects, as it does more than 4,300 digits.
    """
    if not text.isascii() or not text.isdigit() or len(text) > MAX_DIGITS:
        return None
    return int(text)


def check_whole_number(name: str, value: object, *, minimum: int = 1) -> None:
    """Raise a UserError if a value is not an integer of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise UserError(f"{name} must be a whole number, {minimum} or more, got {value!r}.")


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape that is half of a character beyond U+FFFF; alone it is no character."""


def parse_json(text: str | bytes) -> Any:
    """A JSON document; raises a ValueError if it is invalid or unusable.

    Unusable: nested too deeply, an integer of thousands of digits, or half of a surrogate pair,
    which could not be written again.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError:
        raise
    except ValueError:
        digits = sys.get_int_max_str_digits()
        raise ValueError(f"it has a number of more than {digits:,} digits") from None
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("it holds half of a surrogate pair, which is no character") from None
    return value


def read_json_file(path: Path) -> Any:
    """The JSON document of a UTF-8 file; raises a ValueError or an OSError if there is none."""
    if path.stat().st_size > limit("json"):
        raise limit_exceeded_error(
            "json", f"the bytes of {path} must be", f"got {path.stat().st_size:,}"
        )
    return parse_json(path.read_text(encoding="utf-8"))


def read_json_object(path: Path) -> dict[str, Any]:
    """The same for a JSON object."""
    value = read_json_file(path)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {type(value).__name__}")
    return value
