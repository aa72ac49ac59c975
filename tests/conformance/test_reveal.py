"""What every system reveals of itself is what its captures declare it to be."""

from __future__ import annotations

import re

import pytest
import torch

from lmlab.diagnostics.subjects import batch_of, sentence_of
from lmlab.scoring.evaluating import evaluating

from .conftest import Specimen

TOLERANCE = 1e-4
SENTENCE = "a b b a"
DRAWN = re.compile(r"\b(rows?|columns?)\b", re.IGNORECASE)
"""Where something is drawn is for the figure to say: a capture may be drawn either way."""


@pytest.mark.check("source")  # an image is not made of words
def test_8_what_it_reveals_is_within_its_declared_range(specimen: Specimen):
    system = specimen.system
    condition = SENTENCE if specimen.model.card.conditional else None
    batch = batch_of(system, [sentence_of(specimen.model, SENTENCE, condition)])
    with evaluating(system), torch.random.fork_rng():
        torch.manual_seed(0)
        captures = system.reveal(batch)
    for name, capture in captures.items():
        assert not DRAWN.search(capture.reading), f"{name}: {capture.reading}"
        values = capture.values.double()
        finite = values[values.isfinite()]
        low, high = capture.range
        assert (finite >= low - TOLERANCE).all(), name
        assert (finite <= high + TOLERANCE).all(), name
        if capture.sums_to_one:
            sums = values.nan_to_num().sum(capture.axes.index(capture.sums_to_one))
            # Nothing at all where nothing is predicted.
            ones = torch.where(sums.abs() < TOLERANCE, torch.ones_like(sums), sums)
            assert ones.numel() == 0 or (ones - 1).abs().max() < TOLERANCE, name
