"""Training runs of an ablation, in sequence or parallel: finished ones kept, others resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lmlab.core.atomic_files import no_follow, telling_disk_errors, write_json
from lmlab.core.child_processes import GRACE_SECONDS, start_child
from lmlab.core.errors import UserError
from lmlab.core.switches import describe_switches
from lmlab.core.system_files import system_argument
from lmlab.core.untrusted_input import parse_dataclass, read_json_object
from lmlab.experiments.ablation import (
    RECORD_FORMAT,
    Ablation,
    AblationPlan,
    AblationTrial,
    DisabledTerms,
    summarise_trials,
)
from lmlab.training.distributed import lock_output
from lmlab.training.progress import StopSignals
from lmlab.training.run_folder import RunFolder
from lmlab.training.setting_records import format_value
from lmlab.training.system_building import build_system
from lmlab.training.train import train
from lmlab.training.training_logs import NOT_FINITE, format_exact_duration, read_metrics

RECORD_FILE = "ablation.json"
HELD_OUT_SPLITS = ("validation", "test")
CRASHED = 1
"""Exit code of a process that ends with a traceback, which its log then holds."""
ReportProgress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class TrialTask:
    """One planned training."""

    disabled: DisabledTerms
    seed: int
    folder: str

    def name(self, plan: AblationPlan) -> str:
        """A readable name."""
        terms = describe_switches(self.disabled, plan.card.switches)
        return f"{plan.card.name}, {terms}{' off' if self.disabled else ''}, seed {self.seed}"


def run_ablation(
    plan: AblationPlan, out: Path, *, jobs: int, quiet: bool, report: ReportProgress
) -> Ablation:
    """Train what is missing; after each training the record is rewritten."""
    record = AblationRecord(plan, out)
    missing = [task for task in _tasks(plan) if not record.is_finished(task)]
    finished = len(_tasks(plan)) - len(missing)
    if finished:
        report(f"{finished} of {len(_tasks(plan))} trainings were done before")
    if not missing:
        record.write()  # nothing to train, but the table may have changed
    elif jobs == 1:
        _run_sequentially(record, missing, quiet, report)
    else:
        _run_in_parallel(record, missing, jobs, report)
    return record.ablation()


def _tasks(plan: AblationPlan) -> list[TrialTask]:
    """One seed of every set first, so that an unfinished table is informative."""
    return [
        TrialTask(disabled=off, seed=seed, folder=f"{_folder(off)}-seed{seed}")
        for seed in range(plan.seeds)
        for off in plan.ablated_sets
    ]


def _folder(off: DisabledTerms) -> str:
    return "off-" + "-".join(map(str, off)) if off else "intact"


class AblationRecord:
    """Ablation record, in the ablation's folder: the plan, and every finished trial."""

    def __init__(self, plan: AblationPlan, out: Path) -> None:
        self.plan = plan
        self.out = out
        self.runs = out / "runs"
        self._trials: dict[tuple[DisabledTerms, int], AblationTrial] = {}
        self._split = ""
        if (out / RECORD_FILE).exists():
            self._read(out / RECORD_FILE)

    def _read(self, path: Path) -> None:
        try:
            stored = read_json_object(path)
            stored_plan, trials = dict(stored["asked"]), stored["all_trials"]
            self._split = str(stored["split"])
            for trial in trials:
                losses = tuple((int(epoch), float(loss)) for epoch, loss in trial["losses"])
                fields = {**trial, "disabled": tuple(trial["disabled"]), "losses": losses}
                self._trials[fields["disabled"], fields["seed"]] = parse_dataclass(
                    AblationTrial, fields
                )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise UserError(
                f"{path} is not the record of an ablation; choose another --out."
            ) from error
        current = self.plan.record()
        for name in sorted(current.keys() | stored_plan.keys()):
            if stored_plan.get(name) != current.get(name):
                raise UserError(
                    f"the ablation in {self.out} was started with {name}={stored_plan.get(name)}, "
                    f"got {current.get(name)}; resume unchanged, or choose another --out."
                )

    def is_finished(self, task: TrialTask) -> bool:
        """Whether that training is finished."""
        return (task.disabled, task.seed) in self._trials

    def add_trial(self, task: TrialTask, *, failed: str = "") -> AblationTrial:
        """Add a finished training to the record."""
        run = RunFolder(self.runs / task.folder)
        trial, self._split = _read_trial(task, run, failed)
        self._trials[task.disabled, task.seed] = trial
        self.write()
        return trial

    def ablation(self) -> Ablation:
        """The table so far."""
        trials = list(self._trials.values())
        return summarise_trials(self.plan, trials, path=self.out, split=self._split)

    def write(self) -> None:
        """Write ablation.json: the table, and the earlier trials of other sets."""
        table = self.ablation().as_dict()
        trials = [asdict(trial) for trial in self._trials.values()]
        plan = self.plan.record()
        write_json(
            self.out / RECORD_FILE,
            {"format": RECORD_FORMAT, **table, "asked": plan, "all_trials": trials},
        )


def _read_trial(task: TrialTask, run: RunFolder, failed: str) -> tuple[AblationTrial, str]:
    """A trial from a finished run's files, and the split of its losses."""
    config, lines = run.read_config(), read_metrics(run.metrics)
    held_out = [line for line in lines if line["event"] in HELD_OUT_SPLITS]
    if not held_out and not failed:
        raise UserError(
            "an ablation compares held-out losses, and this corpus has neither a validation nor "
            "a test split; give a folder with a valid* or test* file."
        )
    system = build_system(config.system, config.system_config, config.vocabulary, seed=0)
    trial = AblationTrial(
        disabled=task.disabled,
        seed=task.seed,
        run=f"runs/{task.folder}",
        parameters=system.parameter_count,
        seconds=float(lines[-1]["seconds"]) if lines else 0.0,
        losses=tuple((int(line["epoch"]), float(line["loss"])) for line in held_out),
        failed=failed,
    )
    return trial, str(held_out[-1]["event"]) if held_out else ""


def _run_sequentially(
    record: AblationRecord, tasks: list[TrialTask], quiet: bool, report: ReportProgress
) -> None:
    """Run sequentially in this process, each with its own progress bar."""
    total = len(tasks)
    for number, task in enumerate(tasks, 1):
        report(f"[{number}/{total}] {task.name(record.plan)}")
        _await_checkpoint(record, task)
        failed = ""
        try:
            result = train(record.plan.card.name, **_arguments(record, task), quiet=quiet)
        except UserError as error:
            failed = _failure(record, task, error)
        else:
            if result.reason == "interrupted":
                return
        record.add_trial(task, failed=failed)
        if failed:
            report(failed)


def _await_checkpoint(record: AblationRecord, task: TrialTask) -> None:
    """Wait for a training process of a killed ablation to write its last checkpoint."""
    lock_output(record.runs / task.folder, wait=GRACE_SECONDS + 10).release()


def _arguments(record: AblationRecord, task: TrialTask) -> dict[str, Any]:
    plan, out = record.plan, record.runs / task.folder
    return {
        "data": plan.data,
        "out": out,
        "size": plan.plan.size,
        "settings": {**plan.given, "off": ",".join(map(str, task.disabled))},
        "tokenizer": plan.tokenizer,
        "recipe": plan.plan.recipe,
        "epochs": plan.plan.training.epochs,
        "seed": task.seed,
        "resume": RunFolder(out).exists(),
    }


def _failure(record: AblationRecord, task: TrialTask, error: UserError) -> str:
    """A training that diverged to non-finite numbers is a result; any other error is raised."""
    lines = read_metrics(RunFolder(record.runs / task.folder).metrics)
    if not lines or lines[-1]["event"] != NOT_FINITE:
        raise error
    return str(error)


def _record_trial(
    record: AblationRecord, task: TrialTask, failed: str, report: ReportProgress
) -> None:
    trial = record.add_trial(task, failed=failed)
    duration = format_exact_duration(trial.seconds)
    result = failed or f"{trial.losses[-1][1]:.4f} nats per token after {duration}"
    report(f"{task.name(record.plan)}: {result}")


def _run_in_parallel(
    record: AblationRecord, tasks: list[TrialTask], jobs: int, report: ReportProgress
) -> None:
    """Run several at a time, each in a process of its own with its share of the cores."""
    waiting, running = list(tasks), dict[TrialTask, subprocess.Popen[bytes]]()
    started = dict[TrialTask, subprocess.Popen[bytes]]()
    share = str(max(1, (os.cpu_count() or 1) // jobs))
    environment = {"OMP_NUM_THREADS": share, **os.environ}
    with telling_disk_errors(record.runs):
        record.runs.mkdir(parents=True, exist_ok=True)
    with StopSignals() as signals:
        try:
            while running or (waiting and not signals.stop_requested):
                while waiting and len(running) < jobs and not signals.stop_requested:
                    task = waiting.pop(0)
                    report(f"[{len(tasks) - len(waiting)}/{len(tasks)}] {task.name(record.plan)}")
                    _await_checkpoint(record, task)
                    started[task] = running[task] = _start_training(record, task, environment)
                if signals.stop_requested:
                    _stop_all(running)
                    break
                time.sleep(0.05)
                for task in [task for task, job in running.items() if job.poll() is not None]:
                    _record_process(record, task, running.pop(task).returncode, report)
        finally:
            _stop_all(running)
            _remove_unused_logs(record, started)


def _start_training(
    record: AblationRecord, task: TrialTask, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a training as a child process that ends with this one."""
    arguments = _arguments(record, task)
    command = [sys.executable, "-m", "lmlab", "train", system_argument(record.plan.card)]
    for name in ("data", "out", "size", "tokenizer", "recipe", "epochs", "seed"):
        if arguments[name] is not None:
            command += [f"--{name}", str(arguments[name])]
    for key, value in arguments["settings"].items():
        command += ["--set", f"{key}={format_value(value, empty='')}"]
    command += ["--resume"] if arguments["resume"] else []
    path = _log(record, task)
    with telling_disk_errors(path), open(path, "wb", opener=no_follow) as log:
        return start_child(command, environment=environment, output=log)


def _record_process(
    record: AblationRecord, task: TrialTask, code: int, report: ReportProgress
) -> None:
    """Record the training of a finished process, or report its failure."""
    if code == 0:
        _record_trial(record, task, "", report)
        return
    output = _log(record, task).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    sentence = output[-1].removeprefix("lmlab: ") if output else f"it ended with code {code}."
    _record_trial(record, task, _failure(record, task, UserError(sentence)), report)


def _stop_all(running: Mapping[TrialTask, subprocess.Popen[bytes]]) -> None:
    """Ask each process to write a checkpoint and end, and wait for it."""
    for job in running.values():
        if job.poll() is None:
            job.send_signal(signal.SIGINT)
    for job in running.values():
        job.wait()


def _remove_unused_logs(
    record: AblationRecord, started: Mapping[TrialTask, subprocess.Popen[bytes]]
) -> None:
    """Remove logs of trainings that were refused, or stopped, before they wrote anything."""
    for task, job in started.items():
        if job.returncode != CRASHED and not (record.runs / task.folder).exists():
            _log(record, task).unlink(missing_ok=True)
    if not any(record.runs.iterdir()):
        record.runs.rmdir()


def _log(record: AblationRecord, task: TrialTask) -> Path:
    return record.runs / f"{task.folder}.log"
