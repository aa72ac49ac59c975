"""Who sees whom, found by perturbation: it must agree with what each backbone is built to see."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
import torch

from lmlab.core.registry import system_module
from lmlab.core.vocabulary import SPECIAL_TOKENS, Vocabulary
from lmlab.inspection.input_dependence import (
    InputDependence,
    input_dependence_svg,
    measure_input_dependence,
)

NAMES = [*SPECIAL_TOKENS, "a", "b", "c"]
SENTENCE = [2, 5, 6, 5, 5, 3]


def build(name: str, **settings):
    torch.manual_seed(0)
    module = system_module(name)
    return module.build(module.Config(**settings), Vocabulary(size=len(NAMES))).eval()


def sight_of(name: str, **settings) -> InputDependence:
    return measure_input_dependence(build(name, **settings), SENTENCE, NAMES)


def causal(size: int, back: int) -> tuple[tuple[bool, ...], ...]:
    """True where an input is at or before the place and less than `back` places away."""
    return tuple(tuple(0 <= row - column < back for column in range(size)) for row in range(size))


def test_labels_are_inputs_and_targets():
    sight = sight_of("lstm", width=4)
    assert sight.inputs == ("<s>", "a", "b", "a", "a")
    assert sight.targets == ("a", "b", "a", "a", "</s>")


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru", "gru-notes", "lstm-sphere"])
def test_a_recurrent_network_uses_the_whole_past(name):
    sight = sight_of(name, width=4, dropout=0.0)
    assert sight.allowed == causal(5, 5)
    assert sight.used == causal(5, 5)
    assert sight.leaks == []


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_window_uses_its_size_and_may_use_more(size):
    sight = sight_of("window", width=4, size=size, dropout=0.0)
    assert sight.allowed == causal(5, 5)
    assert sight.used == causal(5, size)


def test_a_mixture_without_context_uses_nothing():
    assert sight_of("independent", states=2).used == causal(5, 0)


def test_a_network_that_looks_ahead_leaks():
    system = build("lstm", width=4)
    forward = system.backbone.forward

    def backwards(view, state=None):
        hidden = forward(view, state)
        return type(hidden)(values=hidden.values.flip(1), state=hidden.state)

    system.backbone.forward = backwards
    sight = measure_input_dependence(system, SENTENCE, NAMES)
    # The first prediction now sees everything: all but its own place was hidden.
    assert [leak for leak in sight.leaks if leak[0] == 0] == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert 'class="leak"' in input_dependence_svg(sight)


def test_the_picture_has_a_square_for_every_pair_and_is_the_same_each_time():
    sight = InputDependence(
        inputs=("<s>", "你"),
        targets=("你", "</s>"),
        allowed=((True, False), (True, True)),
        used=((True, False), (False, True)),
    )
    drawn = input_dependence_svg(sight, [("NextToken", "Causal"), ("Window & co", "vectors")])
    tree = ElementTree.fromstring(drawn)
    squares = [r.get("class") for r in tree.iter("{http://www.w3.org/2000/svg}rect")]
    # Two boxes of the chain, four squares, and one of each of three looks in the legend.
    assert sorted(squares) == sorted(
        ["line"] * 2 + ["used", "hidden", "unused", "used"] + ["used", "unused", "hidden"]
    )
    assert "Window &amp; co" in drawn
    assert drawn == input_dependence_svg(
        sight, [("NextToken", "Causal"), ("Window & co", "vectors")]
    )
