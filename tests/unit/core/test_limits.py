"""Resource limits and untrusted values: refused in one sentence before allocating memory."""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
import torch

from lmlab.core.errors import UserError
from lmlab.core.limits import LIMITS, check_limit, limit, set_limit, set_limits
from lmlab.core.memory_budget import available_memory, memory_budget
from lmlab.core.untrusted_input import (
    check_seed,
    parse_dataclass,
    parse_integer,
    parse_json,
    unpack_gzip,
)


def test_limit_holds_until_raised():
    with pytest.raises(UserError, match=r"at most 1,000, got 1,001; .* --limit beam=NUMBER"):
        check_limit("beam", 1001, called="the beam width")
    try:
        set_limits(["beam=2000"])
        check_limit("beam", 1001)
    finally:
        set_limit("beam", None)
    assert limit("beam") == 1000


@pytest.mark.parametrize("written", ["beam", "beam=x", "beam=0", "beam=-1", "wings=3", "beam=²"])
def test_invalid_limits_are_refused(written):
    with pytest.raises(UserError):
        set_limits([written])


def test_tensor_over_memory_budget_is_not_allocated():
    with (
        pytest.raises(UserError, match="would need at least 4,000,000"),
        memory_budget("a model", 1000),
    ):
        torch.nn.Linear(10**6, 10**9)


def test_memory_budget_counts_shared_parameters_once():
    with memory_budget("a model", 4 * 300):
        first = torch.nn.Linear(10, 20, bias=False)
        torch.nn.Module().register_parameter("weight", first.weight)
    with pytest.raises(UserError, match="of memory"), memory_budget("a model", 4 * 300):
        [torch.nn.Linear(10, 20, bias=False) for _ in range(2)]


def test_too_many_parameters_are_refused():
    set_limit("parameters", 10)
    try:
        with pytest.raises(UserError, match="more than 10 parameter"), memory_budget("a model"):
            [torch.nn.Linear(1, 1) for _ in range(6)]
    finally:
        set_limit("parameters", None)


def test_available_memory_is_plausible():
    assert 1 << 26 < available_memory() < 1 << 46


@pytest.mark.parametrize("text", ["[" * 200_000, "9" * 5000, "{", b"\xff"])
def test_damaged_json_is_a_value_error(text):
    with pytest.raises(ValueError):
        parse_json(text)


def test_gzip_bomb_and_damaged_gzip_are_refused():
    set_limit("unpacked", 1000)
    try:
        with pytest.raises(UserError, match="at most 1,000"):
            unpack_gzip(gzip.compress(b"0" * 100_000), name="x.gz")
    finally:
        set_limit("unpacked", None)
    assert unpack_gzip(gzip.compress(b"text"), name="x.gz") == b"text"
    whole = gzip.compress(b"text" * 100)
    for packed in (b"text", whole[:-9], whole[:12] + b"\xff\xff\xff" + whole[15:]):
        with pytest.raises(ValueError):
            unpack_gzip(packed, name="x.gz")


@pytest.mark.parametrize(
    ("text", "number"),
    [("12", 12), ("", None), ("²", None), ("٣", None), ("-1", None), ("9" * 5000, None)],
)
def test_parse_integer(text, number):
    assert parse_integer(text) == number


@pytest.mark.parametrize("seed", [-1, 2**31, True, 1.0, "0", None])
def test_seed_range(seed):
    assert check_seed(2**31 - 1) == 2**31 - 1
    with pytest.raises(UserError, match="seed must be from 0"):
        check_seed(seed)


@dataclass(frozen=True, kw_only=True)
class Shape:
    width: int
    rate: float = 0.5
    kind: Literal["a", "b"] = "a"
    heads: tuple[int, ...] = ()
    cut: int | None = None


@pytest.mark.parametrize(
    "values",
    [
        {},
        [],
        None,
        {"width": None},
        {"width": 1.5},
        {"width": True},
        {"width": 10**30},
        {"width": 1, "depth": 2},
        {"width": 1, "rate": "x"},
        {"width": 1, "kind": "c"},
        {"width": 1, "heads": [1, "x"]},
        {"width": 1, "cut": "x"},
    ],
)
def test_parse_dataclass_refuses_invalid_values(values):
    with pytest.raises(ValueError):
        parse_dataclass(Shape, values)


def test_parse_dataclass_accepts_valid_values():
    shape = parse_dataclass(Shape, {"width": 3, "rate": 1, "kind": "b", "heads": [1], "cut": None})
    assert (shape.width, shape.rate, shape.kind, shape.cut) == (3, 1, "b", None)


def test_docs_list_every_limit():
    """docs/reliability.md has the name, default and meaning of each limit."""
    page = (Path(__file__).parents[3] / "docs" / "reliability.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) \| (.*) \|$", page, flags=re.MULTILINE)
    assert rows == [(name, f"{bound.default:,}", bound.what) for name, bound in LIMITS.items()]
