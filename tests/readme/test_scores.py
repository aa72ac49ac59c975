"""The code of docs/scores.md runs and prints what is shown; its options are all there are."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from lmlab.core.figure_style import FigureFileStyle
from lmlab.scoring.word_segmentation import FORMS

from .page_runner import run_page

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "scores.md").read_text(encoding="utf-8")


def test_page_runs_and_prints_the_shown_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run_page(PAGE)
    assert (tmp_path / "bert.pdf").read_bytes().startswith(b"%PDF")


def test_page_names_every_option():
    for field in fields(FigureFileStyle):
        name = field.name.removesuffix("s").replace("_", "-")
        assert f"`--{name} " in PAGE, name
    for form in FORMS:
        assert f"`{form}`" in PAGE, form
