"""The code of docs/benchmarks.md runs and prints what is shown; the page names every suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmlab.scoring.suite_registry import all_suites

from .page_runner import run_page

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")


def test_page_runs_and_prints_the_shown_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run_page(PAGE)
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len([*(tmp_path / "predictions").rglob("predictions.json")]) == 2


def test_page_names_every_suite():
    assert [name for name in all_suites() if f"| `{name}` |" not in PAGE] == []
