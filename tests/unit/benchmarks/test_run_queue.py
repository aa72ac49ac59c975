"""The queue of long experiments: kills, stops, failures and two runners at once."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"

# An experiment: an epoch each 0.05 s, counted in metrics.jsonl; a record at the end. From the third
# epoch on it waits for a file named `hold` to go.
WORKER = """
import json, sys, time
from pathlib import Path
name, runs, records, epochs = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
if name == "broken":
    print("a traceback"); sys.exit("no such corpus")
(runs / name).mkdir(parents=True, exist_ok=True)
metrics = runs / name / "metrics.jsonl"
before = len(metrics.read_text().splitlines()) if metrics.exists() else 0
with (runs / "order.txt").open("a") as order:
    print(name, file=order)
for epoch in range(before + 1, epochs + 1):
    time.sleep(0.05)
    while epoch > 2 and (runs / "hold").exists():
        time.sleep(0.02)
    with metrics.open("a") as file:
        print(json.dumps({"event": "test", "epoch": epoch}), file=file, flush=True)
if name != "silent":
    (records / f"{name}.json").write_text("{}")
"""
DRIVER = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from experiment import Experiment, Folders
import run_queue

def fake(name, group, epochs, needs=()):
    command = (sys.argv[2], name, "{runs}", "{records}", str(epochs))
    return Experiment(name=name, group=group, command=command, minutes=epochs,
                      record=f"{name}.json", run=name, epochs=epochs, needs=needs)

folders = Folders(runs=Path(sys.argv[3]), records=Path(sys.argv[4]))
experiments = run_queue.in_order([eval(text) for text in sys.argv[6:]])
if sys.argv[5] == "list":
    print(run_queue.listing(experiments, folders))
else:
    run_queue.run_experiments(experiments, folders, hours=float(sys.argv[5]))
"""


class Queue:
    """Fake experiments in a folder, and runners of them."""

    def __init__(self, folder: Path) -> None:
        self.runs, self.records = folder / "runs", folder / "records"
        self.records.mkdir(parents=True)
        self.worker, self.driver = folder / "worker.py", folder / "driver.py"
        self.worker.write_text(WORKER)
        self.driver.write_text(DRIVER)

    def start(self, *experiments: str, hours: str = "1") -> subprocess.Popen[str]:
        paths = (self.driver, BENCHMARKS, self.worker, self.runs, self.records)
        command = [sys.executable, *map(str, paths), hours, *experiments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)

    def run(self, *experiments: str, hours: str = "1") -> str:
        runner = self.start(*experiments, hours=hours)
        output, errors = runner.communicate(timeout=60)
        return output + errors

    def states(self, *experiments: str) -> dict[str, str]:
        lines = self.run(*experiments, hours="list").splitlines()[:-1]
        return dict(line.split(" min  ")[1].split(": ", 1) for line in lines)

    def epochs(self, name: str) -> list[int]:
        path = self.runs / name / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line)["epoch"] for line in lines]

    def hold(self) -> None:
        self.runs.mkdir()
        (self.runs / "hold").touch()

    def release(self) -> None:
        (self.runs / "hold").unlink()

    def child(self) -> int:
        return int((self.runs / "queue.lock").read_text().split()[0])


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue(tmp_path)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_order_needs_failures_and_what_is_left(queue: Queue) -> None:
    experiments = (
        'fake("drawn", "pictures", 1, ("trained",))',
        'fake("trained", "words", 2)',
        'fake("broken", "leak", 2)',
        'fake("silent", "seeds", 1)',
        'fake("after broken", "leak", 1, ("broken",))',
    )
    assert set(queue.states(*experiments).values()) == {"waiting"}
    queue.run(*experiments)
    assert queue.states(*experiments) == {
        "broken": "failed (no such corpus)",
        "after broken": "waiting",
        "trained": "done",
        "silent": "failed (it ended without silent.json)",
        "drawn": "done",
    }
    order = (queue.runs / "order.txt").read_text()
    assert order.split() == ["trained", "silent", "drawn"]
    queue.run(*experiments)
    assert (queue.runs / "order.txt").read_text() == order  # nothing is repeated


def test_killed_amid_an_experiment_continues_there(queue: Queue) -> None:
    experiments = ('fake("first", "leak", 1)', 'fake("second", "leak", 6)')
    queue.hold()
    runner = queue.start(*experiments)
    wait_until(lambda: len(queue.epochs("second")) == 2)
    child = queue.child()
    runner.kill()
    os.kill(child, signal.SIGKILL)
    runner.communicate()
    assert queue.states(*experiments) == {"first": "done", "second": "stopped at epoch 2 of 6"}
    queue.release()
    queue.run(*experiments)
    assert queue.epochs("first") == [1] and queue.epochs("second") == [1, 2, 3, 4, 5, 6]
    assert (queue.runs / "order.txt").read_text().split() == ["first", "second", "second"]


def test_what_a_killed_runner_left_behind_keeps_others_away(queue: Queue) -> None:
    experiment = 'fake("long", "leak", 4)'
    queue.hold()
    runner = queue.start(experiment)
    wait_until(lambda: len(queue.epochs("long")) == 2)
    runner.kill()
    runner.communicate()
    refusal = queue.run(experiment)
    assert f"in use by process {queue.child()} long; wait until it ends" in refusal
    assert queue.states(experiment) == {"long": "running at epoch 2 of 4"}
    queue.release()
    wait_until(lambda: (queue.records / "long.json").exists())
    assert queue.epochs("long") == [1, 2, 3, 4]
    assert queue.states(experiment) == {"long": "done"}


@pytest.mark.parametrize("how", ["SIGTERM", "hours"])
def test_stop_ends_the_experiment_and_begins_no_other(queue: Queue, how: str) -> None:
    experiments = ('fake("long", "leak", 1000)', 'fake("next", "words", 1)')
    if how == "hours":
        queue.run(*experiments, hours=str(1.5 / 3600))
    else:
        runner = queue.start(*experiments)
        wait_until(lambda: queue.epochs("long"))
        runner.terminate()
        assert runner.communicate(timeout=30)[1] == ""
        assert runner.returncode == 0
    epochs = len(queue.epochs("long"))  # on a busy machine none in so short a time
    long = f"stopped at epoch {epochs} of 1000" if epochs else "waiting"
    assert queue.states(*experiments) == {"long": long, "next": "waiting"}


def test_declared_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "path", [*sys.path, *(str(BENCHMARKS / name) for name in (".", "notes", "papers"))]
    )
    run_queue: ModuleType = importlib.import_module("run_queue")
    experiments = run_queue.all_experiments()
    assert {item.group for item in experiments} == set(run_queue.GROUPS)
    names = {item.name for item in experiments}
    for item in experiments:
        assert (BENCHMARKS.parent / item.command[0]).is_file()
        assert item.minutes > 0 and set(item.needs) <= names


def test_a_reader_that_has_seen_enough_gets_no_traceback() -> None:
    """`run_queue.py --list | head -1`"""
    command = f"{sys.executable} {BENCHMARKS / 'run_queue.py'} --list | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert result.stdout.count("\n") == 1 and "BrokenPipe" not in result.stderr
