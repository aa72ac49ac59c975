"""The commands of docs/devices.md run in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from .page_runner import run_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "devices.md"


def test_page_runs_and_prints_the_shown_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMLAB_CACHE", str(tmp_path / "cache"))
    ran = run_page(PAGE.read_text(encoding="utf-8"))
    assert any("layers in bfloat16" in output for _, output in ran)
