"""Run folders written by hand, and a cache of the index that is the test's own."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lmlab.run_store.run_index import RunIndex


@dataclass
class RunWriter:
    """Writes run folders below a root."""

    root: Path
    settled: bool = True
    """Whether folders get a time of ten minutes ago, as those of runs that are left alone."""

    def __call__(
        self,
        name: str,
        *,
        system: str = "lstm",
        data: str = "grammar",
        seed: int = 0,
        step: int | None = 10,
        weights: bool = True,
        losses: tuple[float, ...] = (3.0, 2.5),
        state: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        extra: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Path:
        """A run of `step` steps out of 10; None without a checkpoint."""
        run = self.root / name
        run.mkdir(parents=True)
        config = {
            "format": 1,
            "system": system,
            "size": "tiny",
            "seed": seed,
            "system_config": {"width": 16, **settings},
            "training": {"epochs": None, "steps": 10, "learning_rate": 0.002} | (training or {}),
            "corpus": {"name": data, "spec": data, "fingerprint": "f", "seed": 0},
        }
        (run / "config.json").write_text(json.dumps(config | (extra or {})))
        (run / "manifest.json").write_text("{}")
        lines = [
            {"step": 2 * n, "epoch": 0, "event": event, "loss": loss, "seconds": 3.0 * n}
            | ({"learning_rate": 0.002} if event == "train" else {})
            for n, loss in enumerate(losses, 1)
            for event in ("train", "validation")
        ]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        if weights:
            (run / "model.safetensors").write_bytes(b"x" * 100)
        if step is not None:
            checkpoint = run / "trainer" / f"step-{step}"
            checkpoint.mkdir(parents=True)
            progress = {"step": step, "epoch": 0, "seconds": 6.0, "stale_validations": 0}
            content = {"step": step, "state": {"progress": progress | (state or {})}}
            (checkpoint / "state.json").write_text(json.dumps(content))
        if self.settled:
            self.settle(run)
        return run

    @staticmethod
    def settle(run: Path) -> None:
        """Give a folder a time after which it surely has not changed."""
        then = time.time() - 600
        os.utime(run, (then, then))


@pytest.fixture
def make_run(tmp_path: Path) -> RunWriter:
    return RunWriter(tmp_path / "runs")


@pytest.fixture
def index(tmp_path: Path) -> RunIndex:
    return RunIndex(tmp_path / "cache" / "runs.sqlite")
