"""The papers' own ablations: every declared setting exists, and verdicts by hand."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lmlab.core.registry import system_module
from lmlab.training.config import TrainingConfig, apply_settings, split_settings

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def papers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    folders = [str(BENCHMARKS / name) for name in ("papers", "notes", ".")]
    monkeypatch.setattr(sys, "path", [*folders, *sys.path])
    return importlib.import_module("papers")


def test_findings_name_variants_and_all_settings_exist(papers: ModuleType) -> None:
    """So that none fails after hours of others."""
    for comparison in papers.COMPARISONS:
        assert comparison.protocol in papers.PROTOCOLS
        for finding in comparison.findings:
            assert {finding.better, finding.worse} <= set(comparison.variants)
        for variant in comparison.variants:
            config = system_module(comparison.systems.get(variant, comparison.system)).SIZES[
                "small"
            ]
            settings = papers.settings_of(comparison, variant)
            of_system, of_training = split_settings(settings, config, TrainingConfig())
            apply_settings(config, of_system)
            apply_settings(TrainingConfig(), of_training)


def test_each_takes_at_most_an_hour_and_all_about_ten(papers: ModuleType) -> None:
    minutes = [item.minutes for item in papers.experiments()]
    assert max(minutes) <= 60 and sum(minutes) <= 12 * 60


def test_verdict_needs_three_seeds_that_agree(papers: ModuleType) -> None:
    by_name = {comparison.name: comparison for comparison in papers.COMPARISONS}
    comparison = by_name["reversed-sources"]  # nats per token: lower is better
    [finding] = comparison.findings
    losses = {"reversed": (3.0, 3.1, 3.2), "as it is": (3.5, 3.2, 3.1)}
    records = [
        {"variant": variant, "seed": seed, "nats per token": loss}
        for variant, values in losses.items()
        for seed, loss in enumerate(values)
    ]
    assert papers.differences(comparison, finding, records) == pytest.approx([0.5, 0.1, -0.1])
    assert papers.verdict([0.5, 0.1, -0.1]) == "within the spread"
    assert papers.verdict([0.5, 0.1, 0.2]) == "the same"
    assert papers.verdict([-0.5, -0.1, -0.2]) == "the opposite"
    assert papers.verdict([0.5]) == "1 of 3 seeds so far"
    assert papers.verdict([]) == "queued"


def test_table_on_its_page_is_up_to_date(papers: ModuleType) -> None:
    """If not: python benchmarks/papers/papers.py --write docs/papers.md"""
    assert papers.table() in (BENCHMARKS.parent / "docs" / "papers.md").read_text(encoding="utf-8")
