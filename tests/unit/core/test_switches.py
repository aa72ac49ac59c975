"""Ablation switches: declared on cards and in configs, given by number or name."""

from __future__ import annotations

from dataclasses import fields

import pytest

from lmlab.core.errors import UserError
from lmlab.core.registry import catalogue, system_module
from lmlab.core.switches import describe_switches, parse_switch_sets, parse_switches
from lmlab.core.vocabulary import Vocabulary
from lmlab.training.config import apply_settings

SWITCHABLE = [card.name for card in catalogue().values() if card.switches]
NAMES = ("alpha", "beta", "gamma")


def test_some_systems_declare_switches():
    assert {"gru-minimal", "mgru"} <= set(SWITCHABLE)


@pytest.mark.parametrize("name", SWITCHABLE)
def test_card_switches_equal_those_of_the_config(name):
    module = system_module(name)
    [off] = [field for field in fields(module.Config) if field.name == "off"]
    assert module.CARD.switches == off.metadata["switches"]
    assert len(set(module.CARD.switches)) == len(module.CARD.switches)


@pytest.mark.parametrize("value", ["4,6", "tanh, no-centring", "6,4,4", (4, 6), ["tanh", 6]])
def test_settings_accept_switch_numbers_and_names(value):
    config = apply_settings(system_module("mgru").Config(), {"off": value})
    assert config.off == (4, 6)


@pytest.mark.parametrize("value", ["12", "sigmoid", "-2", "4,x"])
def test_unknown_switch_error_lists_all_switches(value):
    with pytest.raises(UserError, match=r"no switch '.*0 gate-hidden, 1 .*11 no-heads"):
        apply_settings(system_module("mgru").Config(), {"off": value})


def test_config_accepts_switch_names():
    module = system_module("gru-minimal")
    intact = module.build(module.Config(width=4, states=3), Vocabulary(size=7))
    system = module.build(module.Config(width=4, states=3, off=("gate-input",)), Vocabulary(size=7))
    assert intact.parameter_count - system.parameter_count == 4 * 4


def test_inescapable_initial_state_is_refused():
    module = system_module("gru-minimal")
    config = module.Config(width=4, states=3, off=(7,), starts=0)
    with pytest.raises(UserError, match="starts=1"):
        module.build(config, Vocabulary(size=7))


def test_parse_and_describe_switch_sets():
    assert parse_switch_sets("2; 0,beta;;beta,0", NAMES) == [(2,), (0, 1), ()]
    assert parse_switches("intact", NAMES) == ()
    assert describe_switches((0, 2), NAMES) == "0 alpha, 2 gamma"
    assert describe_switches((), NAMES) == "intact"
