"""The claims' benchmarks: records resume, the queue counts them, and laws of what is measured."""

from __future__ import annotations

import argparse
import importlib
import json
import math
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):
    for folder in ("benchmarks", "benchmarks/notes"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    return importlib.import_module


def options(out: Path, **changes: object) -> argparse.Namespace:
    given = {"out": out, "seeds": 2, "only": "", "table": False, "figure": None} | changes
    return argparse.Namespace(**given)


def test_records_resume_and_other_settings_are_refused(load, tmp_path: Path) -> None:
    claims, out, calls = load("claim_records"), tmp_path / "claim.json", []

    def measure(cell: str, seed: int) -> dict[str, float]:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append((cell, seed))
        return {"loss": float(seed)}

    configurations = [{"cell": "a"}, {"cell": "b"}]
    with pytest.raises(KeyboardInterrupt):
        claims.measure_missing(options(out), {"width": 1}, configurations, measure)
    assert calls == [("a", 0), ("b", 0)] and len(json.loads(out.read_text())["records"]) == 2
    calls.clear()
    claims.measure_missing(options(out, only="cell=b"), {"width": 1}, configurations, measure)
    assert calls == [("b", 1)]
    calls.clear()
    records = claims.measure_missing(options(out), {"width": 1}, configurations, measure)
    assert calls == [("a", 1)] and sorted(r["seed"] for r in records) == [0, 0, 1, 1]
    with pytest.raises(SystemExit, match="other settings"):
        claims.measure_missing(options(out), {"width": 2}, configurations, measure)


def test_queue_expects_as_many_records_as_there_are_configurations(load) -> None:
    queue = load("claim_queue")
    expected = {run.name: run.configurations for run in queue.experiments()}
    memory, cells = load("memory"), load("cell_variants")
    assert len(memory.SYSTEMS) * len(memory.RATES) == expected["claims.memory.mixed"]
    assert {f"claims.memory.{gap}" for gap in memory.ALONE} <= set(expected)
    assert len(cells.CELLS) == expected["claims.cells.words"]
    assert {f"claims.cells.{name.replace(' ', '-')}" for name in cells.CORPORA} <= set(expected)
    for name, *sizes in (
        ("pooling-energies", "POOLINGS", "ENERGIES"),
        ("single-mask-counts", "RATES", "STEPS"),
        ("few-shot-size", "WIDTHS"),
        ("sampled-attention", "LANGUAGES"),
        ("joint-dependencies", "DEPENDENCIES"),
        ("screening", "EMISSIONS"),
        ("nce-four-sentences", "LOSSES"),
        ("analogies", "RATES"),
    ):
        module: ModuleType = load(name.replace("-", "_"))
        assert math.prod(len(getattr(module, size)) for size in sizes) == expected[f"claims.{name}"]


def test_two_answers_of_one_state_are_at_least_log_two_from_the_truth(load) -> None:
    reader_of = load("expectation_mixture").Reader
    torch.manual_seed(0)
    names = torch.stack([torch.arange(16) // 4, torch.arange(16) % 4], 1)
    pairs = torch.tensor([(0, 5), (2, 9), (7, 8)])
    for scale in (0.1, 1.0, 30.0):
        reader = reader_of(8, 2, 4)
        with torch.no_grad():
            reader.vectors.mul_(scale)
            sides = {
                model: torch.stack(
                    [reader.log_prob(pairs, names[pairs[:, i]], model) for i in (0, 1)]
                )
                for model in ("expectation", "mixture")
            }
            by_hand = [
                reader.log_joint(reader.vectors[p], names[p[:1]].expand(2, 2)) for p in pairs
            ]
        assert float(-sides["expectation"].mean() - math.log(2)) >= math.log(2) - 1e-5
        assert torch.allclose(
            sides["mixture"][0], torch.stack([b.logsumexp(0) - math.log(2) for b in by_hand])
        )
