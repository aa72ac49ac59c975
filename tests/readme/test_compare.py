"""The code of docs/compare.md runs and prints what is shown; its table is that of the record."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from .page_runner import run_page

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")


def test_page_runs_and_prints_the_shown_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMLAB_CACHE", str(tmp_path / "cache"))
    run_page(PAGE)
    files = {path.name for path in (tmp_path / "tables").iterdir()}
    assert files == {"results.csv", "results-differences.csv", "report.html"}


def test_table_of_the_mixture_is_the_record():
    records = json.loads((ROOT / "benchmarks" / "results" / "mix.json").read_text())
    for record in records:
        test = record["nats_per_token"]["test"]
        perplexities = [f"{math.exp(test[name]):.2f}" for name in ("ngram", "lstm", "mix")]
        row = [str(record["seed"]), *(f"{w:.3f}" for w in record["weights"]), *perplexities]
        assert f"| {' | '.join(row)} |" in PAGE
        assert test["mix"] < min(test["ngram"], test["lstm"])
