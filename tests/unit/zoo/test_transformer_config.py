"""Invalid Transformer settings are refused when the config is made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary

CAUSAL = ["gpt", "transformer-xl", "transformer", "t5", "bart", "pegasus", "palm", "mass"]
"""Systems with a causal stack: half of its buckets hold one distance each."""
BIDIRECTIONAL = ["bert", "albert", "electra", "unilm", "xlnet"]
"""Bidirectional systems, with half of the buckets per direction: a quarter."""


@pytest.mark.parametrize(
    ("name", "exact"), [(n, 8) for n in CAUSAL] + [(n, 4) for n in BIDIRECTIONAL]
)
def test_max_distance_must_exceed_the_exact_buckets(name: str, exact: int):
    """The least valid value also builds; one less would divide by log 1 = 0."""
    module = system_module(name)
    tiny = replace(module.SIZES["tiny"], positions="buckets", buckets=16, max_distance=exact + 1)
    module.build(tiny, Vocabulary(size=20))
    with pytest.raises(UserError, match=f"larger than {exact} .* got {exact}"):
        replace(tiny, max_distance=exact)


def test_unused_bucket_settings_are_not_checked():
    assert system_module("gpt").Config(buckets=4, max_distance=2).positions == "learned"


def test_rotary_positions_need_an_even_head_width():
    config = system_module("gpt").Config
    for settings, odd in (({"width": 15, "heads": 3}, 5), ({"head_width": 7}, 7)):
        with pytest.raises(UserError, match=f"head_width must be even .* got {odd}"):
            config(positions="rotary", **settings)
    assert config(positions="rotary", width=15, heads=3, head_width=4).head_width == 4
