"""The code of docs/tracking.md runs and prints the output shown there."""

from __future__ import annotations

from pathlib import Path

import pytest

from .page_runner import run_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tracking.md"


def test_page_runs_and_prints_the_shown_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run_page(PAGE.read_text(encoding="utf-8"))
    assert (tmp_path / "runs" / "gru" / "metrics.jsonl").exists()
