"""BabyLM's supplement to BLiMP: minimal pairs of questions, turn taking and hypernyms."""

from __future__ import annotations

from lmlab.scoring.suite import Suite
from lmlab.scoring.suites.blimp import read_pairs

SUITE = Suite(
    name="supplement",
    title="BabyLM's supplement to BLiMP",
    source="Warstadt et al. 2023, Findings of the BabyLM Challenge",
    read=read_pairs,
    babylm_task="blimp",
)
