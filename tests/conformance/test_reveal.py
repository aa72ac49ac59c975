"""Captures of every system have the ranges and sums that they declare."""

from __future__ import annotations

import re

import pytest
import torch

from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.inspection.inspected_models import collate_sentences, tokenize_sentence

from .claims import claim
from .conftest import Specimen

TOLERANCE = 1e-4
SENTENCE = "a b b a"
LAYOUT_WORDS = re.compile(r"\b(rows?|columns?)\b", re.IGNORECASE)
"""Words for the layout of a figure: a capture may be plotted either way."""


@pytest.mark.check("source")  # an image is not made of words
def test_8_captures_are_within_their_declared_range(specimen: Specimen):
    system = specimen.system
    condition = SENTENCE if specimen.model.card.conditional else None
    batch = collate_sentences(system, [tokenize_sentence(specimen.model, SENTENCE, condition)])
    with evaluation_mode(system), torch.random.fork_rng():
        torch.manual_seed(0)
        captures = system.capture_internals(batch)
    for name, capture in captures.items():
        layout_word = LAYOUT_WORDS.search(capture.caption)
        claim(not layout_word, f"the reading of {name} says where it is drawn: {capture.caption!r}")
        values = capture.values.double()
        finite = values[values.isfinite()]
        low, high = capture.range
        outside = finite[(finite < low - TOLERANCE) | (finite > high + TOLERANCE)].tolist()
        claim(not outside, f"{name} is declared to be within {low} … {high}, got {outside[:3]}")
        if capture.sums_to_one:
            sums = values.nan_to_num().sum(capture.axes.index(capture.sums_to_one))
            # Nothing at all where nothing is predicted.
            wrong = sums[(sums.abs() >= TOLERANCE) & ((sums - 1).abs() >= TOLERANCE)].tolist()
            claim(not wrong, f"{name} does not sum to 1 over {capture.sums_to_one}: {wrong[:3]}")
