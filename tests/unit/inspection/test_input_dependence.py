"""Input dependence measured by perturbation: it must agree with each backbone's mask."""

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


def dependence_of(name: str, **settings) -> InputDependence:
    return measure_input_dependence(build(name, **settings), SENTENCE, NAMES)


def causal(size: int, window: int) -> tuple[tuple[bool, ...], ...]:
    """True where an input is at or before the position and less than `window` away."""
    return tuple(tuple(0 <= row - column < window for column in range(size)) for row in range(size))


def test_labels_are_inputs_and_targets():
    dependence = dependence_of("lstm", width=4)
    assert dependence.inputs == ("<s>", "a", "b", "a", "a")
    assert dependence.targets == ("a", "b", "a", "a", "</s>")


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru", "gru-notes", "lstm-sphere"])
def test_recurrent_network_depends_on_the_whole_past(name):
    dependence = dependence_of(name, width=4, dropout=0.0)
    assert dependence.allowed == causal(5, 5)
    assert dependence.used == causal(5, 5)
    assert dependence.leaks == []


@pytest.mark.parametrize("size", [1, 2, 3])
def test_window_depends_on_its_size_and_may_use_more(size):
    dependence = dependence_of("window", width=4, size=size, dropout=0.0)
    assert dependence.allowed == causal(5, 5)
    assert dependence.used == causal(5, size)


def test_context_free_mixture_depends_on_no_input():
    assert dependence_of("independent", states=2).used == causal(5, 0)


def test_network_that_attends_to_the_future_leaks():
    system = build("lstm", width=4)
    forward = system.backbone.forward

    def reversed_forward(view, state=None):
        hidden = forward(view, state)
        return type(hidden)(values=hidden.values.flip(1), state=hidden.state)

    system.backbone.forward = reversed_forward
    dependence = measure_input_dependence(system, SENTENCE, NAMES)
    # The first prediction now depends on everything: all but its own position was masked.
    assert [leak for leak in dependence.leaks if leak[0] == 0] == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert 'class="leak"' in input_dependence_svg(dependence)


def test_svg_has_a_square_per_pair_and_is_deterministic():
    dependence = InputDependence(
        inputs=("<s>", "你"),
        targets=("你", "</s>"),
        allowed=((True, False), (True, True)),
        used=((True, False), (False, True)),
    )
    svg = input_dependence_svg(dependence, [("NextToken", "Causal"), ("Window & co", "vectors")])
    tree = ElementTree.fromstring(svg)
    squares = [r.get("class") for r in tree.iter("{http://www.w3.org/2000/svg}rect")]
    # Two boxes of the chain, four squares, and one of each of three styles in the legend.
    assert sorted(squares) == sorted(
        ["line"] * 2 + ["used", "hidden", "unused", "used"] + ["used", "unused", "hidden"]
    )
    assert "Window &amp; co" in svg
    assert svg == input_dependence_svg(
        dependence, [("NextToken", "Causal"), ("Window & co", "vectors")]
    )
