"""Checkpoints whose hashes verify but whose state is invalid are reported in a sentence."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from lmlab.core.errors import UserError
from lmlab.core.manifest import read_manifest, write_manifest
from lmlab.training.checkpoints import checked_numbers
from lmlab.training.progress import Progress
from lmlab.training.train import train
from lmlab.training.training_logs import read_metrics

BUDGET = {"data": "grammar", "size": "tiny", "quiet": True}


def change_state(run: Path, part: str, key: str, value: Any) -> None:
    """Change a number of the last checkpoint, and list the changed file in its manifest."""
    [folder] = (run / "trainer").glob("step-*")
    document = json.loads((folder / "state.json").read_text())
    if key:
        document["state"][part][key] = value
    else:
        document["state"][part] = value
    (folder / "state.json").write_text(json.dumps(document))
    write_manifest(folder, read_manifest(folder))


@pytest.mark.parametrize(
    ("system", "part", "key", "value", "message"),
    [
        ("lstm", "progress", "step", "x", "step must be a whole number"),
        ("lstm", "progress", "", 5, "expected numbers named step"),
        ("lstm", "schedule", "", True, "expected numbers named scale"),
        (
            "lstm",
            "schedule",
            "stale_validations",
            -1,
            "stale_validations must be a whole number, 0 or more",
        ),
        ("lstm", "progress", "seconds", math.nan, "seconds must be a number"),
        ("hmm", "progress", "epoch", 1.5, "epoch must be a whole number"),
        ("cbow", "schedule", "scale", None, "scale must be a number"),
    ],
)
def test_invalid_checkpoint_state_is_rejected(
    tmp_path: Path, system: str, part: str, key: str, value: Any, message: str
) -> None:
    fitting = {"settings": {"fitting": "em"}} if system == "hmm" else {}
    budget = {"epochs": 1} if system == "cbow" else {"steps": 2}
    train(system, out=tmp_path / "run", **BUDGET, **fitting, **budget)  # type: ignore[arg-type]
    change_state(tmp_path / "run", part, key, value)
    with pytest.raises(UserError, match=rf"trainer does not fit this training .*{message}"):
        train(system, out=tmp_path / "run", resume=True, **BUDGET)  # type: ignore[arg-type]


def test_progress_state_round_trips() -> None:
    progress = Progress(step=3, best=math.inf, seconds=1.5)
    assert Progress.restored(json.loads(json.dumps(progress.state()))) == progress
    with pytest.raises(ValueError, match="expected numbers named"):
        checked_numbers({"step": 1}, {"step": 0, "epoch": 0})


def test_damaged_metrics_lines_are_skipped(tmp_path: Path) -> None:
    whole = {"step": 1, "epoch": 0, "event": "train", "loss": math.inf, "count": 3, "seconds": 1}
    damaged = [
        *({**whole, "step": value} for value in (math.inf, "2", -1, True, None, 1.5)),
        *({**whole, "epoch": value} for value in ([1], None)),
        *({**whole, "count": value} for value in (math.inf, math.nan, "x", [])),
        *({**whole, "loss": value} for value in ("x", {}, True)),
        *({**whole, "vector_norms": value} for value in (5, {"a": "x"})),
    ]
    rows = [*map(json.dumps, damaged), "[" * 200_000, "5", json.dumps(whole), '{"st']
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows))
    assert read_metrics(tmp_path / "metrics.jsonl") == [whole]
