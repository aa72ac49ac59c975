"""SyntaxGym's predictions: formulas over the surprisal of regions, parsed into a small syntax tree.

    formula    = and {"|" and}
    and        = comparison {"&" comparison}
    comparison = sum [("<" | ">" | "=") sum]
    sum        = value {("+" | "-") value}
    value      = number | region | "[" formula "]" | "(" formula ")"
    region     = "(" (number | "*") ";" "%" condition "%" ")"

`*` is the whole sentence. Nothing of a formula is executed as code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lmlab.core.errors import UserError
from lmlab.scoring.minimal_pairs import TIE

Region = tuple[str, int | None]
"""A condition's name and a region's number; None for the whole sentence."""
Surprisals = Mapping[Region, float]

TOKENS = re.compile(
    r"\s*(?:\(\s*(?P<region>\d+|\*)\s*;\s*%(?P<condition>[^%]+)%\s*\)"
    r"|(?P<number>\d+(?:\.\d+)?)|(?P<sign>[\[\]()<>=&|+-]))"
)
CLOSING = {"[": "]", "(": ")"}
MAX_DEPTH = 50
"""Brackets within brackets."""


@dataclass
class Evaluation:
    """The surprisals that a formula is evaluated on, and whether a comparison was a tie."""

    surprisals: Surprisals
    tied: bool = False

    def compare(self, sign: str, left: float, right: float) -> bool:
        """A comparison; values within the tolerance `TIE` are equal, so neither is larger."""
        equal = left == right or abs(left - right) <= TIE
        self.tied |= equal and sign != "="
        if sign == "=":
            return equal
        return not equal and (left < right if sign == "<" else left > right)


Node = Callable[[Evaluation], float]
"""A part of the syntax tree: its value, where true is 1 and false is 0."""


@dataclass(frozen=True, kw_only=True)
class Formula:
    """A parsed prediction."""

    text: str
    regions: frozenset[Region]
    """The regions that it mentions."""
    root: Node = field(repr=False)

    def holds(self, surprisals: Surprisals) -> tuple[bool, bool]:
        """Whether it is true, and whether one of its comparisons is a tie."""
        evaluation = Evaluation(surprisals)
        return self.root(evaluation) > 0, evaluation.tied


def parse_formula(text: str) -> Formula:
    """Parse a prediction; a UserError shows where it is not a formula."""
    parser = _Parser(text)
    root = parser.parse()
    return Formula(text=text, regions=frozenset(parser.regions), root=root)


class _Parser:
    """Recursive descent; `tokens` are the matches of TOKENS, the next one first."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.regions: set[Region] = set()
        self.position = self.depth = 0
        self.tokens: list[re.Match[str]] = []
        end = len(text.rstrip())
        while self.position < end:
            match = TOKENS.match(text, self.position)
            if match is None:
                raise self.error()
            self.tokens.append(match)
            self.position = match.end()
        self.next = 0

    def error(self) -> UserError:
        there = repr(self.text[self.position :].strip()[:30]) or "the end"
        return UserError(f"the formula {self.text!r} can't be read at {there}; see SyntaxGym's.")

    def sign(self, *signs: str) -> str | None:
        """Take the next token if it is one of these signs."""
        match = self.tokens[self.next] if self.next < len(self.tokens) else None
        if match is None or match["sign"] not in signs:
            self.position = len(self.text) if match is None else match.start()
            return None
        self.next += 1
        return match["sign"]

    def parse(self) -> Node:
        root = self.disjunction()
        if self.next < len(self.tokens):
            self.position = self.tokens[self.next].start()
            raise self.error()
        return root

    def disjunction(self) -> Node:
        node = self.conjunction()
        while self.sign("|"):
            node = _either(node, self.conjunction())
        return node

    def conjunction(self) -> Node:
        node = self.comparison()
        while self.sign("&"):
            node = _both(node, self.comparison())
        return node

    def comparison(self) -> Node:
        left = self.sum()
        sign = self.sign("<", ">", "=")
        return left if sign is None else _comparison(sign, left, self.sum())

    def sum(self) -> Node:
        node = self.value()
        while sign := self.sign("+", "-"):
            node = _sum(node, self.value(), 1.0 if sign == "+" else -1.0)
        return node

    def value(self) -> Node:
        if opening := self.sign("[", "("):
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise self.error()
            node = self.disjunction()
            if not self.sign(CLOSING[opening]):
                raise self.error()
            self.depth -= 1
            return node
        match = self.tokens[self.next] if self.next < len(self.tokens) else None
        if match is None or match["sign"]:
            raise self.error()
        self.next += 1
        if match["number"]:
            return _constant(float(match["number"]))
        number = None if match["region"] == "*" else int(match["region"])
        region = (match["condition"], number)
        self.regions.add(region)
        return lambda evaluation: evaluation.surprisals[region]


def _constant(value: float) -> Node:
    return lambda evaluation: value


def _sum(left: Node, right: Node, factor: float) -> Node:
    return lambda evaluation: left(evaluation) + factor * right(evaluation)


def _comparison(sign: str, left: Node, right: Node) -> Node:
    return lambda evaluation: evaluation.compare(sign, left(evaluation), right(evaluation))


def _both(left: Node, right: Node) -> Node:
    # Both sides are evaluated, so that ties are counted in all comparisons.
    return lambda evaluation: min(left(evaluation) > 0, right(evaluation) > 0)


def _either(left: Node, right: Node) -> Node:
    return lambda evaluation: max(left(evaluation) > 0, right(evaluation) > 0)
