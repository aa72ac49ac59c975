"""Kinds of scorers of the zoo: their kinds of score, and what docs/energies.md says of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lmlab.conformance.system_under_test import Workspace
from lmlab.core.registry import catalogue

SCORE_KINDS_OF = {
    "left-to-right": {"exact"},
    "masked": {"pseudo"},
    "energy": {"unnormalised", "estimate"},
    "reconstruction": {"reconstruction"},
    "whole-text": {"bound", "unnormalised"},
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in catalogue()]
)
def test_kind_of_scorer_and_the_page_on_energies(workspace: Workspace, name: str):
    tested = workspace.system(name)
    kind = tested.system.scorer_kind
    assert tested.card.kind in SCORE_KINDS_OF[kind]
    page = (Path(__file__).parents[2] / "docs" / "energies.md").read_text(encoding="utf-8")
    [listed] = re.findall(r"\*\*Whole texts only\*\*: (.*?)\.", page, re.DOTALL)
    scores_texts = "LogProb" in tested.card.protocols and not tested.card.conditional
    scores_whole_texts_only = scores_texts and kind in ("energy", "whole-text")
    assert (name in re.findall(r"`([\w-]+)`", listed)) == scores_whole_texts_only
