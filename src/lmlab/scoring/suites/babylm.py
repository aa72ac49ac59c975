"""The text tasks of BabyLM's evaluation, each in its folder."""

from __future__ import annotations

from lmlab.scoring.suite import SuiteCollection

SUITE = SuiteCollection(
    name="babylm",
    title="BabyLM's zero-shot text tasks: BLiMP, supplement, entity tracking, wug test",
    source="Charpentier et al. 2025, BabyLM Turns 3: Call for papers for the 2025 BabyLM workshop",
    folders={
        "blimp": "blimp_filtered",
        "supplement": "supplement_filtered",
        "entity-tracking": "entity_tracking",
        "wug": "wug_adj_nominalization",
    },
)
