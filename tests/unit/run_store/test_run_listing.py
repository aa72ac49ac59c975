"""Listings: order, conditions, columns, the settings that differ."""

from __future__ import annotations

import os
import time

import pytest

from lmlab.core.errors import UserError
from lmlab.run_store.run_listing import list_runs
from lmlab.run_store.run_tags import change_tags


def names(listing) -> list[str]:
    return [record.name for record in listing]


@pytest.fixture
def four(make_run):
    """Four runs with losses 2.5, 2.0, 1.5 and none."""
    make_run("b", width=32, losses=(3.0, 2.5))
    make_run("a", seed=1, losses=(2.0,))
    make_run("c", system="gpt", heads=4, losses=(1.5,))
    make_run("d", system="gpt", heads=2, step=3, losses=())
    return make_run.root


def test_runs_are_sorted_with_those_without_a_value_last(four, index):
    assert names(list_runs(four, index=index)) == ["a", "b", "c", "d"]
    assert names(list_runs(four, sort="best", index=index)) == ["c", "a", "b", "d"]
    assert names(list_runs(four, sort="-best", index=index)) == ["b", "a", "c", "d"]
    assert names(list_runs(four, sort="heads", index=index))[:2] == ["d", "c"]


def test_conditions_take_fields_settings_and_tags(four, index):
    change_tags(four / "c", ["chosen"], [])
    cases = {
        "system=gpt and status=finished": ["c"],
        "best<2.5": ["a", "c"],
        "heads>1": ["c", "d"],
        "not tag=chosen and system=gpt": ["d"],
        "seed=1 or width=32": ["a", "b"],
        "run~a": ["a"],
        "status=stopped": ["d"],
    }
    for where, expected in cases.items():
        assert names(list_runs(four, where=where, index=index)) == expected, where


def test_settings_differ_within_a_system(four, index):
    listing = list_runs(four, index=index)
    assert listing.differing == {"lstm": ("width", "seed"), "gpt": ("heads",)}
    assert [listing.value(record, "differs") for record in listing] == [
        {"width": 16, "seed": 1},
        {"width": 32, "seed": 0},
        {"heads": 4},
        {"heads": 2},
    ]


def test_a_clock_ahead_of_ours_gives_the_age_zero(make_run, index):
    run = make_run("a")
    for name in ("config.json", "metrics.jsonl", "model.safetensors"):
        os.utime(run / name, (time.time() + 999,) * 2)
    listing = list_runs(make_run.root, index=index)
    assert listing.value(listing[0], "age") == 0


def test_a_listing_is_a_sequence_of_records(four, index):
    listing = list_runs(four, index=index)
    assert len(listing) == 4
    assert [record.name for record in listing[1:3]] == ["b", "c"]
    assert listing.as_dict()["runs"][0]["run"] == "a"


@pytest.mark.parametrize("option", [{"sort": "bets"}, {"columns": ["bets"]}, {"where": "bets=1"}])
def test_unknown_keys_get_the_nearest(four, index, option):
    with pytest.raises(UserError, match="no key called 'bets'; did you mean 'best'"):
        list_runs(four, index=index, **option)
