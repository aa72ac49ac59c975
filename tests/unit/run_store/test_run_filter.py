"""The language of --where, against Python's own evaluation and for its errors."""

from __future__ import annotations

import itertools

import pytest

from lmlab.core.errors import UserError
from lmlab.run_store.run_filter import parse_condition

RUN = {
    "system": "lstm",
    "data": "my corpus.txt",
    "width": 64,
    "rate": 0.002,
    "tied": True,
    "epochs": None,
    "off": [0, 4],
    "tag": ("good", "first"),
    "age": 3 * 86400.0,
    "disk": 2_500_000,
}
KEYS = {*RUN, "depth"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("system=lstm", True),
        ("system=LSTM", False),
        ("system!=lstm", False),
        ("system~ST", True),
        ("width=64.0", True),
        ("width<64", False),
        ("width<=64", True),
        ("width > 63", True),
        ("rate=2e-3", True),
        ("tied=true", True),
        ("tied=True", True),
        ("tied!=true", False),
        ("epochs=none", True),
        ("epochs<3", False),
        ("depth=3", False),
        ("depth!=3", True),
        ("off=4", True),
        ("off=5", False),
        ("off!=5", True),
        ("tag=good", True),
        ("tag~fir", True),
        ("tag=go", False),
        ("age<1w", True),
        ("age<71h", False),
        ("disk>2.4MB", True),
        ("data='my corpus.txt'", True),
        ('data="other"', False),
        ("data~'corpus'", True),
        ("not system=gpt", True),
        ("not not system=gpt", False),
        # `and` binds more strongly than `or`, `not` than both
        ("system=lstm or system=gpt and width=1", True),
        ("(system=lstm or system=gpt) and width=1", False),
        ("not system=gpt and width=64", True),
        ("not (system=gpt or width=64)", False),
        ("system='and'", False),
    ],
)
def test_conditions(text: str, expected: bool):
    assert parse_condition(text, KEYS)(RUN.get) is expected


def test_and_or_not_agree_with_python_in_every_combination():
    """All conditions of three variables of two shapes, for all values."""
    for first, second, values in itertools.product(
        ("and", "or"), ("and", "or"), itertools.product((0, 1), repeat=3)
    ):
        run = dict(zip("abc", values, strict=True))
        text = f"not a=1 {first} b=1 {second} not c=1"
        python = eval(text.replace("=1", ""), {}, run)
        assert parse_condition(text, run)(run.get) == bool(python)
        text = f"not a=1 {first} (b=1 {second} not c=1)"
        python = eval(text.replace("=1", ""), {}, run)
        assert parse_condition(text, run)(run.get) == bool(python)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expects a comparison such as system=lstm, got the end"),
        ("sytem=lstm", "no key called 'sytem'; did you mean 'system'"),
        ("system", "expects one of = != < > <= >= ~ after the key 'system'"),
        ("system=", "expects a value after '=', got the end"),
        ("system=lstm and", "expects a comparison such as system=lstm after 'and', got the end"),
        ("system=lstm width=3", "expects 'and', 'or' or the end after 'lstm', got 'width'"),
        ("(system=lstm", r"expects '\)' after 'lstm', got the end"),
        ("system=lstm)", r"expects 'and', 'or' or the end after 'lstm', got '\)'"),
        ("width<wide", "width< needs a number, got 'wide'"),
        ("age<old", r"age< needs a number \(units: s, min, h, d, w\), got 'old'"),
        ("data='open", "can't be read from .*'open"),
        ("or", "expects a comparison"),
        ("(" * 500 + "system=lstm", "may nest at most 100"),
        ("not " * 500 + "system=lstm", "may nest at most 100"),
    ],
)
def test_errors_name_the_place(text: str, message: str):
    with pytest.raises(UserError, match=message):
        parse_condition(text, KEYS)
