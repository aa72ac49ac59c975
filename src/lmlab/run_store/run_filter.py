"""The language of `--where`: comparisons of a run's values, joined by and, or, not, parentheses.

    condition  = conjunction { "or" conjunction }
    conjunction = part { "and" part }
    part       = "not" part | "(" condition ")" | KEY OPERATOR VALUE
    OPERATOR   = "=" | "!=" | "<" | ">" | "<=" | ">=" | "~"

`~` is true if the value contains the text, upper and lower case alike. Of a run without the key
only `!=` is true. A value with blanks or signs is put in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lmlab.core.errors import UserError, unknown_name

TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>"[^"]*"|'[^']*')|(?P<sign>!=|<=|>=|[=<>~()])|(?P<word>[^\s=<>~()!"']+))"""
)
OPERATORS = ("=", "!=", "<", ">", "<=", ">=", "~")
UNITS: Mapping[str, Mapping[str, float]] = {
    "age": {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800},
    "seconds": {"s": 1, "min": 60, "h": 3600, "d": 86400},
    "disk": {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12},
}
"""Units that a number may have, as in age<2d and disk>1GB."""
MAX_DEPTH = 100

Values = Callable[[str], Any]
"""The value of a run by its key; None where it has none."""
Condition = Callable[[Values], bool]


def parse_condition(text: str, keys: Iterable[str]) -> Condition:
    """The condition of a `--where`; a UserError with the place and the nearest key otherwise."""
    parser = _Parser(text, frozenset(keys))
    condition = parser.condition(0)
    if parser.tokens:
        raise parser.error("'and', 'or' or the end")
    return condition


@dataclass(frozen=True, kw_only=True)
class _Token:
    text: str
    quoted: bool = False


class _Parser:
    """Recursive descent over the tokens of a condition."""

    def __init__(self, text: str, keys: frozenset[str]) -> None:
        self.keys = keys
        self.tokens = _tokens(text)
        self.before = ""
        """The last token, for errors."""

    def condition(self, depth: int) -> Condition:
        return self._joined("or", any, self._conjunction, depth)

    def _conjunction(self, depth: int) -> Condition:
        return self._joined("and", all, self._part, depth)

    def _joined(
        self,
        word: str,
        join: Callable[[Iterable[bool]], bool],
        inner: Callable[[int], Condition],
        depth: int,
    ) -> Condition:
        parts = [inner(depth)]
        while self._next_is(word):
            self._take()
            parts.append(inner(depth))
        if len(parts) == 1:
            return parts[0]
        return lambda values: join(part(values) for part in parts)

    def _part(self, depth: int) -> Condition:
        if depth > MAX_DEPTH:
            raise UserError(f"--where may nest at most {MAX_DEPTH} parentheses and nots.")
        if self._next_is("not"):
            self._take()
            inner = self._part(depth + 1)
            return lambda values: not inner(values)
        if self._next_is("("):
            self._take()
            inner = self.condition(depth + 1)
            if not self._next_is(")"):
                raise self.error("')'")
            self._take()
            return inner
        return self._comparison()

    def _comparison(self) -> Condition:
        if not self.tokens or self.tokens[0].text in (*OPERATORS, ")", "and", "or"):
            raise self.error("a comparison such as system=lstm")
        key = self._take().text.replace("-", "_")
        if not self.tokens or self.tokens[0].text not in OPERATORS or self.tokens[0].quoted:
            raise self.error(f"one of {' '.join(OPERATORS)} after the key {key!r}")
        operator = self._take().text
        if key not in self.keys:
            raise unknown_name("key", key, self.keys)
        if not self.tokens or (
            not self.tokens[0].quoted and self.tokens[0].text in (*OPERATORS, ")")
        ):
            raise self.error("a value")
        return compare(key, operator, self._take().text)

    def _next_is(self, word: str) -> bool:
        return bool(self.tokens) and not self.tokens[0].quoted and self.tokens[0].text == word

    def _take(self) -> _Token:
        token = self.tokens.pop(0)
        self.before = token.text
        return token

    def error(self, expected: str) -> UserError:
        given = repr(self.tokens[0].text) if self.tokens else "the end"
        after = f" after {self.before!r}" if self.before else ""
        return UserError(f"--where expects {expected}{after}, got {given}.")


def _tokens(text: str) -> list[_Token]:
    tokens, position = [], 0
    text = text.rstrip()
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise UserError(
                f"--where can't be read from {text[position:].strip()[:40]!r} on; put values with "
                "signs in quotes."
            )
        quoted = match["quoted"]
        if quoted is None:
            tokens.append(_Token(text=match["sign"] or match["word"]))
        else:
            tokens.append(_Token(text=quoted[1:-1], quoted=True))
        position = match.end()
    return tokens


def compare(key: str, operator: str, wanted: str) -> Condition:
    """One comparison: of numbers if both sides are, else of texts; of lists by any item."""
    number = parse_number(key, wanted)
    if operator in ("<", ">", "<=", ">=") and number is None:
        units = ", ".join(UNITS.get(key, ()))
        hint = f" (units: {units})" if units else ""
        raise UserError(f"{key}{operator} needs a number{hint}, got {wanted!r}.")

    def test(values: Values) -> bool:
        value = values(key)
        items = value if isinstance(value, (list, tuple)) and operator != "<" else [value]
        if operator == "!=":
            return not any(_is_equal(item, wanted, number) for item in items)
        return any(_compare(item, operator, wanted, number) for item in items)

    return test


def _compare(value: Any, operator: str, wanted: str, number: float | None) -> bool:
    if operator == "=":
        return _is_equal(value, wanted, number)
    if value is None:
        return False
    if operator == "~":
        return wanted.lower() in text_of(value).lower()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or number is None:
        return False
    return {"<": value < number, ">": value > number, "<=": value <= number, ">=": value >= number}[
        operator
    ]


def _is_equal(value: Any, wanted: str, number: float | None) -> bool:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and number is not None:
        return float(value) == number
    return text_of(value) == (wanted.lower() if isinstance(value, bool) else wanted)


def text_of(value: Any) -> str:
    """A value as it is written in a condition: true, none, 0,4."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(text_of, value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def parse_number(key: str, text: str) -> float | None:
    """A number, with a unit where the key has any (2d of an age); None if it is none."""
    units = UNITS.get(key, {})
    for unit in sorted(units, key=len, reverse=True):
        if text.endswith(unit):
            number = _number(text.removesuffix(unit).strip())
            return None if number is None else number * units[unit]
    return _number(text)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
