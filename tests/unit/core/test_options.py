"""Calls of functions that take a record's fields as keywords, or collect a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from lmlab.core.options import collects, takes


@dataclass(frozen=True, kw_only=True)
class Size:
    depth: int
    width: int = 3

    def __post_init__(self) -> None:
        if self.width < 0:
            raise TypeError("a width below 0")


@takes(Size)
def volume(height: int, size: Size) -> int:
    return height * size.depth * size.width


@takes(Size)
def stretched_stream(factor: int, texts: Iterable[str], size: Size) -> Iterator[str]:
    return (text * factor * size.depth * size.width for text in texts)


@collects(stretched_stream)
def stretched() -> None:
    """Texts, repeated."""


@pytest.mark.parametrize(
    ("values", "keywords"),
    [((2,), {"depth": 5}), ((2,), {"depth": 5, "width": 3}), ((), {"height": 2, "depth": 5})],
)
def test_subjects_are_given_by_position_or_name(values: tuple[int, ...], keywords: dict) -> None:
    assert volume(*values, **keywords) == 2 * 5 * 3


@pytest.mark.parametrize(
    ("values", "keywords", "message"),
    [
        ((2,), {}, r"volume\(\): missing required 'depth'"),
        ((), {"depth": 5}, r"volume\(\): missing a required argument: 'height'"),
        ((2,), {"depth": 5, "wide": 1}, r"volume\(\): got an unexpected keyword argument 'wide'"),
        ((2,), {"depth": 5, "height": 1}, r"volume\(\): multiple values for argument 'height'"),
        ((2, 5), {}, r"volume\(\): (missing required 'depth'|too many positional arguments)"),
        ((2,), {"depth": 5, "width": -1}, "^a width below 0$"),
    ],
)
def test_wrong_calls_name_the_function(
    values: tuple[int, ...], keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        volume(*values, **keywords)


def test_collected_stream_is_called_in_the_same_ways() -> None:
    expected = ["abababababab"]
    assert stretched(2, ["ab"], depth=1) == expected
    assert stretched(2, texts=["ab"], depth=1) == expected
    assert stretched(factor=1, texts=["ab"], depth=2, width=3) == expected
    with pytest.raises(TypeError, match=r"stretched\(\): missing required 'depth'"):
        stretched(2, ["ab"])
    with pytest.raises(TypeError, match=r"stretched\(\): .*'wide'"):
        stretched(2, ["ab"], depth=1, wide=1)
