"""Bits per byte of the text in UTF-8, the unit that also compares across scripts."""

from __future__ import annotations

from lmlab.scoring.metric import Column, Metric

METRIC = Metric(
    name="bits_per_byte",
    explanation="bits per byte divide by the bytes of the text in UTF-8, whatever the tokens are",
    compute=lambda runs: runs.mean(lambda run: run.summary.bits_per_byte),
    table=Column(title="bits/byte", order=55, shown=lambda rows: True),
)
