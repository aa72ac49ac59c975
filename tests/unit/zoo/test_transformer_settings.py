"""Settings of Transformers that can't be: told in one sentence when they are made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary

BACK = ["gpt", "transformer-xl", "transformer", "t5", "bart", "pegasus", "palm", "mass"]
"""Systems with a stack that looks back alone: half of its buckets hold one distance each."""
BOTH = ["bert", "albert", "electra", "unilm", "xlnet"]
"""Those that look both ways, with half of the buckets for each: a quarter."""


@pytest.mark.parametrize(("name", "exact"), [(n, 8) for n in BACK] + [(n, 4) for n in BOTH])
def test_furthest_exceeds_the_buckets_of_one_distance(name: str, exact: int):
    """The least that is taken also builds; one less would divide by log 1 = 0."""
    module = system_module(name)
    tiny = replace(module.SIZES["tiny"], positions="buckets", buckets=16, max_distance=exact + 1)
    module.build(tiny, Vocabulary(size=20))
    with pytest.raises(UserError, match=f"larger than {exact} .* got {exact}"):
        replace(tiny, max_distance=exact)


def test_buckets_that_are_not_used_are_not_asked_for():
    assert system_module("gpt").Config(buckets=4, max_distance=2).positions == "learned"


def test_rotary_positions_need_heads_of_even_width():
    config = system_module("gpt").Config
    for settings, odd in (({"width": 15, "heads": 3}, 5), ({"head_width": 7}, 7)):
        with pytest.raises(UserError, match=f"head_width must be even .* got {odd}"):
            config(positions="rotary", **settings)
    assert config(positions="rotary", width=15, heads=3, head_width=4).head_width == 4
