"""The code of docs/serving.md runs against a server and prints the output shown there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.readme.page_runner import run_page
from tests.serving import running_server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "serving.md"


def test_page_runs_and_prints_the_shown_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    trained, rest = PAGE.read_text(encoding="utf-8").split("```console", 1)
    run_page(trained)
    with running_server("runs/gpt", "runs/bert") as server:
        # What is left of the console's block begins with its text, up to the closing fence.
        ran = run_page(rest.partition("```")[2].replace("http://127.0.0.1:8000", server.url))
    assert len(ran) == 2
