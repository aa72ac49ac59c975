"""Untrusted JSON: invalid documents raise ValueError with a short reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.core.limits import set_limit
from lmlab.core.untrusted_input import parse_json, read_json_file


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 200_000, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "a number of more than 4,300 digits"),
        ('{"a": ["\\ud800"]}', "half of a surrogate pair"),
        ('{"\\uDFFF": 1}', "half of a surrogate pair"),
        ("{", "property name"),
        (b"\xff{}", "utf-8"),
    ],
)
def test_invalid_json_is_a_value_error_with_reason(text: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)


def test_surrogate_pairs_are_characters() -> None:
    for value in ({"pear": "🍐"}, ["\\ud800"], [1.5, None, "é"]):
        assert parse_json(json.dumps(value)) == value
        assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


def test_json_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[" + "1," * 1000 + "1]")
    set_limit("json", 1000)
    try:
        with pytest.raises(UserError, match="must be at most 1,000, got 2,003"):
            read_json_file(tmp_path / "x.json")
    finally:
        set_limit("json", None)
