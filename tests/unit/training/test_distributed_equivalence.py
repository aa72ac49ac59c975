"""The same training in one process and in two."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lmlab.core.tensor_files import read_tensors

PROGRAM = """
import sys
from lmlab.training.train import train

corpus, out = sys.argv[1:]
small = {"size": "tiny", "quiet": True}
# About one row per batch: then a process may have no rows.
settings = {"tokens_per_batch": "8", "log_every": "1"}
train("lstm", data=corpus, out=out + "/sentences", settings=settings, steps=12, **small)
# Streams whose state is carried on, and through a checkpoint too.
settings, stream = {"stream_batch_size": "4", "bptt": "6", "log_every": "1"}, "contiguous:" + corpus
train("lstm", data=stream, out=out + "/contiguous", settings=settings, steps=7, **small)
train("lstm", data=stream, out=out + "/contiguous", steps=30, resume=True, quiet=True)
train("independent", data=corpus, out=out + "/em", epochs=2, **small)
train("ngram", data=corpus, out=out + "/counted", **small)
"""
RUNS = ("sentences", "contiguous", "em", "counted")


@pytest.fixture
def one_and_two_processes(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    """The runs of one process (this one) and of two."""
    program, one, two = tmp_path / "program.py", tmp_path / "one", tmp_path / "two"
    program.write_text(PROGRAM)
    monkeypatch.setattr(sys, "argv", [str(program), str(corpus), str(one)])
    runpy.run_path(str(program))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, "--nproc-per-node=2", str(program), str(corpus), str(two)]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return one, two


def test_two_processes_match_single_process_losses(
    one_and_two_processes: tuple[Path, Path], read_losses: Callable[[Path], list[dict[str, Any]]]
) -> None:
    one, two = one_and_two_processes
    for name in RUNS:
        expected, actual = read_losses(one / name), read_losses(two / name)
        assert [(line["step"], line["event"], line["count"]) for line in actual] == [
            (line["step"], line["event"], line["count"]) for line in expected
        ]
        losses = [line["loss"] for line in actual]
        assert losses == pytest.approx([line["loss"] for line in expected], abs=1e-5)
        weights = read_tensors(one / name / "model.safetensors")
        for key, value in read_tensors(two / name / "model.safetensors").items():
            torch.testing.assert_close(value, weights[key], atol=1e-4, rtol=0)
