"""The status of a run from its folder: kills, failures, budgets, locks of other machines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.core.failure_record import recording_failure
from lmlab.core.locks import LOCK_FILE, held_lock, lock_folder
from lmlab.run_store import run_status
from lmlab.run_store.read_run import read_run

HOLD = """
import sys, time
from pathlib import Path
from lmlab.core.locks import lock_folder
lock = lock_folder(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_a_run_is_running_while_a_process_holds_its_lock_and_stopped_once_it_is_killed(make_run):
    """After kill -9 the lock file stays, but the kernel's lock is gone."""
    run = make_run("a", step=None)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        record = read_run(run)
        process.send_signal(signal.SIGKILL)
    assert (record.status, record.progress) == ("running", 0.4)
    # 6 seconds for 40 % of the budget
    assert record.seconds_left == pytest.approx(9.0)
    assert (run / LOCK_FILE).exists()
    record = read_run(run)
    assert (record.status, record.reason) == ("stopped", "it has no checkpoint yet")
    assert record.seconds_left is None


def test_looking_at_a_lock_neither_writes_nor_takes_it(make_run):
    run = make_run("a")
    assert held_lock(run) is False
    assert not (run / LOCK_FILE).exists()
    with lock_folder(run):
        before = (run / LOCK_FILE).read_bytes()
        assert held_lock(run) is True
        assert (run / LOCK_FILE).read_bytes() == before
    (run / LOCK_FILE).write_bytes(b" 1 this\n")
    held_lock(run)
    lock_folder(run).release()


@pytest.mark.parametrize(
    ("age", "status"), [(60.0, "running"), (-60.0, "running"), (3600.0, "finished")]
)
def test_a_lock_file_of_a_machine_without_shared_locks_counts_while_metrics_are_young(
    make_run, age: float, status: str
):
    run = make_run("a")
    (run / LOCK_FILE).write_bytes(b" 12 another-host\n")
    then = time.time() - age
    os.utime(run / "metrics.jsonl", (then, then))
    assert read_run(run).status == status


BUDGETS = [
    ({"steps": 10}, {"step": 10}, "finished"),
    ({"steps": 11}, {"step": 10}, "stopped"),
    ({"steps": None, "epochs": 2}, {"epoch": 2}, "finished"),
    ({"steps": None, "epochs": 3}, {"epoch": 2}, "stopped"),
    ({"steps": None, "minutes": 0.1}, {"seconds": 6.0}, "finished"),
    ({"steps": 99, "epochs": 2}, {"epoch": 2}, "finished"),
    ({"steps": 99, "patience": 2}, {"stale_validations": 2}, "finished"),
    ({"steps": 99, "patience": 3}, {"stale_validations": 2}, "stopped"),
    # EM has converged: it records no best score
    ({"steps": 99}, {"stale_validations": 1, "best_score": float("inf")}, "finished"),
]


@pytest.mark.parametrize(("training", "state", "status"), BUDGETS)
def test_a_run_is_finished_once_its_budget_is_spent(make_run, training, state, status):
    run = make_run("a", training=training, state=state)
    assert read_run(run).status == status


def test_the_share_of_an_epoch_counts(make_run):
    run = make_run("a", training={"steps": None, "epochs": 4}, losses=(), weights=False)
    line = {"step": 50, "epoch": 1, "epochs": 1.5, "event": "train", "loss": 2.0, "seconds": 1.0}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert read_run(run).progress == 0.375


def test_a_run_without_weights_is_stopped_whatever_its_checkpoint_says(make_run):
    assert read_run(make_run("a", weights=False)).status == "stopped"


def test_counted_and_imported_runs_have_no_checkpoint_and_are_finished(make_run):
    counted = make_run("counted", step=None, losses=())
    line = {"step": 1, "epoch": 1, "event": "train", "loss": 2.0, "seconds": 0.1}
    (counted / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    imported = make_run("imported", step=None, extra={"imported": {"from": "gpt2"}})
    (imported / "metrics.jsonl").unlink()
    assert [read_run(run).status for run in (counted, imported)] == ["finished", "finished"]
    assert read_run(imported).imported == "gpt2"


def test_a_damaged_checkpoint_is_passed_over(make_run):
    run = make_run("a", step=10)
    damaged = run / "trainer" / "step-20" / "state.json"
    damaged.parent.mkdir()
    damaged.write_text('{"step": 20, "sta')
    assert read_run(run).status == "finished"


def test_a_recorded_failure_is_told_and_forgotten_when_training_goes_on(make_run):
    run = make_run("a", step=None)
    with pytest.raises(UserError), recording_failure(run):
        raise UserError("the disk is full.")
    record = read_run(run)
    assert (record.status, record.reason) == ("failed", "the disk is full.")
    with pytest.raises(ZeroDivisionError), recording_failure(run):
        print(1 / 0)
    assert read_run(run).reason == "ZeroDivisionError: division by zero"
    with pytest.raises(KeyboardInterrupt), recording_failure(run):
        raise KeyboardInterrupt
    assert read_run(run).status == "stopped"


def test_a_failure_that_can_not_be_written_is_no_other_error(make_run, monkeypatch):
    """On a full disk the error is that of the training, and the run has stopped."""

    def fail(*arguments: object) -> None:
        raise UserError("the disk is full")

    monkeypatch.setattr("lmlab.core.failure_record.write_json", fail)
    run = make_run("a", step=None)
    with pytest.raises(ZeroDivisionError), recording_failure(run):
        print(1 / 0)
    assert read_run(run).status == "stopped"


def test_a_loss_that_became_infinite_is_a_failure(make_run):
    run = make_run("a", step=None)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 11, "epoch": 0, "event": "not finite", "seconds": 7}\n')
    assert read_run(run).reason == "the loss is not finite"


def test_damaged_files_are_no_crash(make_run):
    run = make_run("a")
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"event": "validation", "loss": 1.0}\n{"event": "valid\xff\n[]\n{"ste')
    assert read_run(run).best == 1.0
    (run / "config.json").write_text('{"format": 1, "sys')
    record = read_run(run)
    assert (record.status, record.reason) == ("failed", "config.json is damaged")


def test_a_folder_of_something_else_is_no_run(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert read_run(tmp_path) is None
    assert read_run(tmp_path / "nothing") is None
    assert run_status.is_running(tmp_path / "nothing") is False


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([("validation", 3.0), ("validation", 2.0), ("validation", 2.5)], (2.0, "validation")),
        ([("validation", 3.0), ("average", 2.0)], (2.0, "validation")),
        ([("test", 2.0), ("test", 2.5)], (2.5, "test")),  # the last weights are kept
        ([("validation", float("nan")), ("validation", 4.0)], (4.0, "validation")),
        ([], (None, "")),
    ],
)
def test_the_best_figure_is_that_of_the_selected_weights(make_run, lines, expected):
    run = make_run("a", losses=())
    content = [json.dumps({"step": 1, "event": event, "loss": loss}) for event, loss in lines]
    (run / "metrics.jsonl").write_text("\n".join(content))
    record = read_run(run)
    assert (record.best, record.split) == expected
    assert record.kind == ("exact" if lines else "")


def test_bleu_that_selects_weights_is_the_best_figure(make_run):
    run = make_run("a", losses=())
    lines = [{"event": "validation", "loss": 1.0 + n, "bleu": 10.0 + n} for n in range(3)]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert (read_run(run).best, read_run(run).metric) == (12.0, "bleu")


def test_a_fine_tuned_run_has_the_metric_of_its_evaluation(make_run):
    task = {"name": "classify", "data": "rows.jsonl", "head": True}
    run = make_run("a", extra={"task": task})
    assert read_run(run).status == "stopped"
    evaluation = {"metrics": {"accuracy": 0.9}, "split": "test"}
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    record = read_run(run)
    assert (record.status, record.data, record.best) == ("finished", "rows.jsonl", 0.9)
    assert record.best_kind == "accuracy, test"
