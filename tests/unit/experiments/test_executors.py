"""Processes that run trainings: they end with their parent, and their death is an outcome."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lmlab
from lmlab.core.errors import UserError
from lmlab.experiments import executors
from lmlab.experiments.executor_options import ExecutorOptions
from lmlab.experiments.executors import LocalExecutor, local_executor, make_executor
from lmlab.experiments.tasks import Task, run_task

FAKE_WORKER = """
import json, os, signal, sys
for line in sys.stdin:
    task = json.loads(line)
    if task["name"] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if task["name"] == "crashed":
        sys.exit("no memory for tables")
    outcome = {"name": task["name"], "state": "finished", "result": {"pid": os.getpid()}}
    print(json.dumps(outcome), flush=True)
"""


def task(name: str) -> Task:
    return Task(name=name, function="training", payload={})


def test_death_of_a_worker_is_an_outcome_and_another_takes_its_place(tmp_path, monkeypatch):
    (tmp_path / "fake_worker.py").write_text(FAKE_WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(executors, "WORKER", "fake_worker")
    outcomes = {}
    with LocalExecutor(2, threads=1) as executor:
        for name in ("killed", "one", "crashed", "two", "three"):
            while not executor.free:
                outcomes |= {outcome.name: outcome for outcome in executor.wait()}
            executor.submit(task(name))
        while len(outcomes) < 5:
            outcomes |= {outcome.name: outcome for outcome in executor.wait()}
    assert {name for name, outcome in outcomes.items() if outcome.state == "finished"} == {
        *("one", "two", "three")
    }
    assert "ended by SIGKILL, as when memory runs out" in outcomes["killed"].failure
    assert "ended with code 1 (no memory for tables)" in outcomes["crashed"].failure
    assert len({outcomes[name].result["pid"] for name in ("one", "two", "three")}) <= 3


def test_one_job_needs_no_process():
    assert local_executor(1, threads=1).free == 1
    assert local_executor(3, threads=1).free == 3
    with pytest.raises(UserError, match="jobs must be at least 1, got 0"):
        local_executor(0, threads=1)
    with pytest.raises(UserError, match="--gpus does not apply to this machine; add --on ray"):
        make_executor(ExecutorOptions(gpus=1), threads=1, folder=None)


def test_ray_that_is_not_installed_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # its import fails
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")  # which lmlab sets, undone after the test
    options = ExecutorOptions(on="ray://127.0.0.1:10001")
    with pytest.raises(UserError, match=r"^--on ray needs Ray: pip install 'lmlab\[ray\]'\.$"):
        make_executor(options, threads=1, folder=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_error_of_a_task_is_an_outcome(capfd):
    unknown = run_task(Task(name="a", function="trainin", payload={}))
    assert unknown.state == "failed" and "training" in unknown.failure
    broken = run_task(Task(name="b", function="training", payload={}, log="runs/b.log"))
    assert broken.state == "failed"
    assert broken.failure == "KeyError: 'pruning' (b.log has the traceback)."
    assert "Traceback" in capfd.readouterr().err


SWEEP = """
import json, sys
import lmlab
from lmlab.experiments.executors import LocalExecutor
executor = LocalExecutor(1, threads=1)
lmlab.sweep(json.loads(sys.argv[1]), out=sys.argv[2], executor=executor, quiet=True)
"""


def trainings(log: Path) -> list[dict]:
    lines = log.read_text().splitlines() if log.exists() else []
    return [json.loads(line) for line in lines if line.startswith('{"event": "training"')]


def children(process: int) -> list[int]:
    path = Path(f"/proc/{process}/task/{process}/children")
    return [int(child) for child in path.read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds children in /proc")
def test_kill_of_a_sweep_ends_its_children_and_loses_nothing(corpus: str, tmp_path: Path):
    """kill -9 after the first training: the worker ends, and the same spec goes on in a process."""
    spec = {
        "system": "gru",
        "data": corpus,
        "size": "tiny",
        "epochs": 8,
        "settings": {"tokens_per_batch": 100, "checkpoint_steps": 3},
        "search": "grid",
        "space": {"width": [4, 5, 6]},
    }
    command = [sys.executable, "-c", SWEEP, json.dumps(spec), str(tmp_path / "killed")]
    log = tmp_path / "killed" / "trials.jsonl"
    parent = subprocess.Popen(command)
    deadline = time.monotonic() + 120
    try:
        while not trainings(log):
            assert parent.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        workers = children(parent.pid)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert len(workers) == 1
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    done = {line["name"]: line for line in trainings(log)}
    assert 1 <= len(done) < 3
    before = {
        name: os.stat(tmp_path / "killed" / "runs" / name / "model.safetensors").st_mtime_ns
        for name in done
    }
    resumed = lmlab.sweep(spec, out=tmp_path / "killed", quiet=True)
    for name, changed in before.items():
        path = tmp_path / "killed" / "runs" / name / "model.safetensors"
        assert os.stat(path).st_mtime_ns == changed
    whole = lmlab.sweep(spec, out=tmp_path / "whole", quiet=True)
    assert resumed.finished and whole.finished
    assert [(t.point, t.values, t.losses) for t in resumed.trials] == [
        (t.point, t.values, t.losses) for t in whole.trials
    ]
