"""The code of docs/sweeps.md runs and prints what is shown; its spec is examples/sweep.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmlab.core.config_files import read_config_file
from lmlab.experiments.pruning import PRUNING_METHODS
from lmlab.experiments.search import SEARCH_METHODS
from lmlab.experiments.sweep_spec import SPEC_KEYS

from .page_runner import blocks_of, run_page

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")


def test_page_runs_and_prints_the_shown_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run_page(PAGE)
    assert (tmp_path / "sweeps" / "grid" / "parallel.svg").exists()


def test_shown_spec_is_the_example(tmp_path: Path):
    [shown] = [block.code for block in blocks_of(PAGE) if block.kind == "yaml"]
    (tmp_path / "shown.yaml").write_text(shown)
    example = ROOT / "examples" / "sweep.yaml"
    assert read_config_file(tmp_path / "shown.yaml") == read_config_file(example)


def test_page_names_every_key_and_method():
    for word in (*SPEC_KEYS[:12], *SEARCH_METHODS, *PRUNING_METHODS):
        assert f"`{word}`" in PAGE or f"{{method: {word}" in PAGE, word
