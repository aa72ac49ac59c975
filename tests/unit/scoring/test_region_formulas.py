"""Formulas of SyntaxGym: precedence, brackets, ties and what is refused."""

from __future__ import annotations

import pytest

from lmlab.core.errors import UserError
from lmlab.scoring.region_formulas import MAX_DEPTH, parse_formula

VALUES = {("a", 1): 3.0, ("a", 2): 1.0, ("b", 1): 2.0, ("b-c d", 1): 2.0, ("a", None): 4.0}


@pytest.mark.parametrize(
    ("text", "holds", "tied"),
    [
        ("(1;%a%) > (1;%b%)", True, False),
        ("(1;%a%) < (1;%b%)", False, False),
        ("(1;%b%)<(1;%b-c d%)", False, True),
        ("(1;%b%) = (1;%b-c d%)", True, False),
        ("(1;%b%) = (1;%a%)", False, False),
        # 3 - 1 - 2 = 0: left to right; 3 - (1 - 2) = 4
        ("(1;%a%) - (2;%a%) - (1;%b%) < 0.5", True, False),
        ("(1;%a%) - [(2;%a%) - (1;%b%)] > 3.5", True, False),
        ("(*;%a%) > (1;%a%)", True, False),
        ("[(1;%a%)>(1;%b%)] & [(2;%a%) > (1;%b%)]", False, False),
        # & binds more closely than |: true | (false & false)
        ("[(1;%a%)>0] | [(2;%a%)>2] & [(2;%a%)>3]", True, False),
        ("[ (1;%a%) + (2;%a%) ] > [ (1;%b%) + 1 ]", True, False),
        ("((1;%a%) > (1;%b%))", True, False),
    ],
)
def test_value_of_a_formula(text: str, holds: bool, tied: bool) -> None:
    assert parse_formula(text).holds(VALUES) == (holds, tied)


def test_near_equality_is_a_tie_and_regions_are_known() -> None:
    formula = parse_formula("(1;%a%) > (1;%b%)")
    assert formula.regions == {("a", 1), ("b", 1)}
    assert formula.holds({("a", 1): 1.0 + 1e-7, ("b", 1): 1.0}) == (False, True)
    infinite = {("a", 1): float("inf"), ("b", 1): float("inf")}
    assert formula.holds(infinite) == (False, True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "(1;%a%) >",
        "(1;%a%) > (1;%b%",
        "[(1;%a%) > 0",
        "[(1;%a%) > 0)",
        "(1;%a%) (1;%b%)",
        "__import__('os')",
        "(1;%a%) ** 2",
        "& (1;%a%)",
        "[" * (MAX_DEPTH + 1) + "1" + "]" * (MAX_DEPTH + 1),
    ],
)
def test_what_is_no_formula_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="can't be read"):
        parse_formula(text)
