"""One training in one process and in two: DDP, FSDP, and checkpoints across numbers of processes.

Two processes sum the same gradients in another order, so that float32 differs by rounding alone.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lmlab.core.tensor_files import read_tensors
from lmlab.training.train import train

TOLERANCE = 1e-5
STEPS = 8
SETTINGS = {
    "log_every": "1",
    "evaluate_every": "4",
    "dropout": "0",
    # A few rows per batch, some with one row only: then a process has none.
    "tokens_per_batch": "24",
    # Adam divides a gradient by its own size, so that one that is zero but for rounding (of a key's
    # bias, which softmax ignores) would move the weight at random; a larger epsilon prevents that.
    "eps": "1e-3",
}
PROGRAM = f"""
import sys
import torch
from lmlab.training import loop
from lmlab.training.train import train

shard = loop.shard_system

def checked_shard(system, accelerator):
    whole = sum(p.numel() for p in system.parameters())
    sharded = shard(system, accelerator)
    local = sum(p.to_local().numel() for p in system.parameters())
    assert local <= 0.6 * whole, (local, whole)
    print("sharded")
    return sharded

loop.shard_system = checked_shard
for argument in sys.argv[1:]:
    system, distributed, out, steps = argument.split(",")
    train(
        system, data="grammar", out=out, size="tiny", steps=int(steps), settings={SETTINGS},
        distributed=distributed, resume=True, quiet=True,
    )
"""


def train_on_two(folder: Path, *trainings: str) -> str:
    """Run trainings 'system,distributed,out,steps' on two processes, resuming what exists."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launcher, "--nproc-per-node=2", str(program), *trainings],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def train_on_one(system: str, out: Path, steps: int) -> None:
    """The same training in this process."""
    train(
        system,
        data="grammar",
        out=out,
        size="tiny",
        steps=steps,
        settings=SETTINGS,
        resume=True,
        quiet=True,
    )


def losses(run: Path) -> list[tuple[int, str, float]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["event"], line["loss"]) for line in lines if "loss" in line]


def assert_same_training(run: Path, reference: Path) -> None:
    """Losses of all steps and the final weights agree to the tolerance."""
    actual, expected = losses(run), losses(reference)
    assert [line[:2] for line in actual] == [line[:2] for line in expected]
    assert len(expected) >= STEPS
    assert [line[2] for line in actual] == pytest.approx(
        [line[2] for line in expected], abs=TOLERANCE
    )
    weights = read_tensors(reference / "model.safetensors")
    found = read_tensors(run / "model.safetensors")
    assert found.keys() == weights.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, weights[name], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("system", ["gpt", "lstm"])
def test_two_processes_train_as_one_does(system: str, tmp_path: Path) -> None:
    """DDP and FSDP equal one process; so do trainings continued on another number of processes."""
    half = STEPS // 2
    train_on_one(system, tmp_path / "one", STEPS)
    for how in ("ddp", "fsdp"):
        train_on_one(system, tmp_path / f"{how}-from-one", half)
    printed = train_on_two(
        tmp_path,
        *(f"{system},{how},{tmp_path / how},{STEPS}" for how in ("ddp", "fsdp")),
        *(f"{system},{how},{tmp_path / f'{how}-from-one'},{STEPS}" for how in ("ddp", "fsdp")),
        *(f"{system},{how},{tmp_path / f'{how}-to-one'},{half}" for how in ("ddp", "fsdp")),
    )
    assert printed.count("sharded") == 2 * 3
    for how in ("ddp", "fsdp"):
        train_on_one(system, tmp_path / f"{how}-to-one", STEPS)
        for name in (how, f"{how}-from-one", f"{how}-to-one"):
            assert_same_training(tmp_path / name, tmp_path / "one")


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_torchrun_example_trains_and_continues(tmp_path: Path) -> None:
    """The script on one node with two CPU processes, twice: it starts a run, then continues it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for steps in (2, 4):
        done = subprocess.run(
            [
                *(
                    "sh",
                    str(EXAMPLES / "torchrun.sh"),
                    "gpt",
                    "--data",
                    "grammar",
                    "--size",
                    "tiny",
                ),
                *("--out", str(tmp_path / "run"), "--steps", str(steps), "--distributed", "fsdp"),
            ],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PROCESSES": "2",
                "MASTER": f"127.0.0.1:{port}",
                "PYTHON": sys.executable,
            },
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert f"finished at step {steps} " in done.stderr + done.stdout
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["training"]["distributed"] == "fsdp"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_slurm_example_is_a_valid_script() -> None:
    """Slurm is not at hand: the syntax, and that srun starts the command of torchrun.sh."""
    script = EXAMPLES / "slurm" / "train.sbatch"
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    started = script.read_text().partition("srun ")[2]
    plain = (EXAMPLES / "torchrun.sh").read_text().partition("exec ")[2]
    assert started.splitlines()[-1] == plain.splitlines()[-1] == '    -m lmlab train "$@" --resume'
