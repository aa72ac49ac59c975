"""The code of docs/large-files.md runs and prints what is shown; it names every column."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmlab.experiments.large_files.result_rows import (
    FillRow,
    ScoreRow,
    TranslationRow,
    VectorRow,
    columns_of,
)

from .page_runner import run_page

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "large-files.md").read_text("utf-8")


def test_page_runs_and_prints_the_shown_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run_page(PAGE)


@pytest.mark.parametrize("row", [ScoreRow, VectorRow, TranslationRow, FillRow])
def test_page_names_the_columns(row: type) -> None:
    assert f"`{' '.join(columns_of(row))}`" in PAGE
