"""A training process killed by SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmlab.training.train import train

PROGRAM = """
import sys
from lmlab.training.train import train
settings = {"dropout": "0.3", "tokens_per_batch": "128", "checkpoint_steps": "7", "log_every": "1"}
train("lstm", data=sys.argv[1], out=sys.argv[2], size="tiny", epochs=int(sys.argv[3]), quiet=True,
      settings=settings, resume=sys.argv[4] == "resume")
"""
EPOCHS = 12


def start_training(
    corpus: Path, out: Path, *, epochs: int, resume: bool
) -> subprocess.Popen[bytes]:
    arguments = [str(corpus), str(out), str(epochs), "resume" if resume else "new"]
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], env=dict(os.environ))


def count_lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def test_run_killed_by_sigkill_resumes_identically(
    corpus: Path, tmp_path: Path, read_losses: Callable[[Path], list[dict[str, Any]]]
) -> None:
    run = tmp_path / "run"
    process = start_training(corpus, run, epochs=1000, resume=False)
    try:
        deadline = time.monotonic() + 120
        while count_lines(run / "metrics.jsonl") < 20:  # beyond the second checkpoint
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL
    steps = [line["step"] for line in read_losses(run) if line["event"] == "train"]
    assert max(steps) >= 15
    # Resumed in this process; both budgets end at the same step.
    options: dict[str, Any] = {"data": corpus, "quiet": True, "epochs": EPOCHS}
    settings = {"dropout": "0.3", "tokens_per_batch": "128", "log_every": "1"}
    whole = train("lstm", out=tmp_path / "whole", size="tiny", settings=settings, **options)
    resumed = train("lstm", out=run, resume=True, **options)
    assert resumed.epochs == whole.epochs == EPOCHS
    assert max(steps) < whole.steps
    assert read_losses(run) == read_losses(whole.path)
    assert (run / "model.safetensors").read_bytes() == (
        whole.path / "model.safetensors"
    ).read_bytes()
