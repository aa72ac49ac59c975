"""Training runs of an ablation: finished ones are kept, interrupted ones resumed."""

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
from lmlab.core.untrusted_input import parse_dataclass, read_json_object
from lmlab.core.vocabulary import Vocabulary
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
from lmlab.training.reporting import NOT_FINITE, format_exact_duration, read_metrics
from lmlab.training.run_folder import RunFolder, build_system
from lmlab.training.train import train

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

    def name(self, question: AblationPlan) -> str:
        """A readable name."""
        words = describe_switches(self.disabled, question.card.switches)
        return f"{question.card.name}, {words}{' off' if self.disabled else ''}, seed {self.seed}"


def run_ablation(
    question: AblationPlan, out: Path, *, jobs: int, quiet: bool, tell: ReportProgress
) -> Ablation:
    """Train what is missing; after each training the record is rewritten."""
    book = AblationRecord(question, out)
    missing = [task for task in _tasks(question) if not book.is_finished(task)]
    done = len(_tasks(question)) - len(missing)
    if done:
        tell(f"{done} of {len(_tasks(question))} trainings were done before")
    if not missing:
        book.write()  # nothing to train, but the table may have changed
    elif jobs == 1:
        _in_turn(question, book, missing, quiet, tell)
    else:
        _at_once(question, book, missing, jobs, tell)
    return book.ablation()


def _tasks(question: AblationPlan) -> list[TrialTask]:
    """One seed of every set first, so that an unfinished table is informative."""
    return [
        TrialTask(disabled=off, seed=seed, folder=f"{_folder(off)}-seed{seed}")
        for seed in range(question.seeds)
        for off in question.ablated_sets
    ]


def _folder(off: DisabledTerms) -> str:
    return "off-" + "-".join(map(str, off)) if off else "intact"


class AblationRecord:
    """Ablation record, in the ablation's folder: the plan, and every finished trial."""

    def __init__(self, question: AblationPlan, out: Path) -> None:
        self.question = question
        self.out = out
        self.runs = out / "runs"
        self._trials: dict[tuple[DisabledTerms, int], AblationTrial] = {}
        self._split = ""
        if (out / RECORD_FILE).exists():
            self._read(out / RECORD_FILE)

    def _read(self, path: Path) -> None:
        try:
            before = read_json_object(path)
            asked, trials = dict(before["asked"]), before["all_trials"]
            self._split = str(before["split"])
            for trial in trials:
                losses = tuple((int(epoch), float(loss)) for epoch, loss in trial["losses"])
                again = {**trial, "disabled": tuple(trial["disabled"]), "losses": losses}
                self._trials[again["disabled"], again["seed"]] = parse_dataclass(
                    AblationTrial, again
                )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise UserError(
                f"{path} is not the record of an ablation; choose another --out."
            ) from error
        now = self.question.record()
        for name in sorted(now.keys() | asked.keys()):
            if asked.get(name) != now.get(name):
                raise UserError(
                    f"the ablation in {self.out} was started with {name}={asked.get(name)}, "
                    f"got {now.get(name)}; resume unchanged, or choose another --out."
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
        return summarise_trials(self.question, trials, path=self.out, split=self._split)

    def write(self) -> None:
        """Write ablation.json: the table, and the earlier trials of other sets."""
        found = self.ablation().as_dict()
        every = [asdict(trial) for trial in self._trials.values()]
        asked = self.question.record()
        write_json(
            self.out / RECORD_FILE,
            {"format": RECORD_FORMAT, **found, "asked": asked, "all_trials": every},
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
    vocabulary = Vocabulary(**config["vocabulary"])
    system = build_system(config["system"], config["system_config"], vocabulary, seed=0)
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


def _in_turn(
    question: AblationPlan,
    book: AblationRecord,
    tasks: list[TrialTask],
    quiet: bool,
    tell: ReportProgress,
) -> None:
    """Run sequentially in this process, each with its own progress bar."""
    total = len(tasks)
    for number, task in enumerate(tasks, 1):
        tell(f"[{number}/{total}] {task.name(question)}")
        _await_writer(book, task)
        failed = ""
        try:
            result = train(**_arguments(question, task, book), quiet=quiet)
        except UserError as error:
            failed = _failure(book, task, error)
        else:
            if result.reason == "interrupted":
                return
        book.add_trial(task, failed=failed)
        if failed:
            tell(failed)


def _await_writer(book: AblationRecord, task: TrialTask) -> None:
    """Wait for a training process of a killed ablation to write its last checkpoint."""
    lock_output(book.runs / task.folder, wait=GRACE_SECONDS + 10).release()


def _arguments(question: AblationPlan, task: TrialTask, book: AblationRecord) -> dict[str, Any]:
    out = book.runs / task.folder
    return {
        "system": question.card.name,
        "data": question.data,
        "out": out,
        "size": question.plan.size,
        "settings": {**question.given, "off": ",".join(map(str, task.disabled))},
        "tokenizer": question.tokenizer,
        "recipe": question.plan.recipe,
        "epochs": question.plan.training.epochs,
        "seed": task.seed,
        "resume": RunFolder(out).exists(),
    }


def _failure(book: AblationRecord, task: TrialTask, error: UserError) -> str:
    """A training that diverged to non-finite numbers is a result; any other error is raised."""
    lines = read_metrics(RunFolder(book.runs / task.folder).metrics)
    if not lines or lines[-1]["event"] != NOT_FINITE:
        raise error
    return str(error)


def _finished(
    question: AblationPlan, book: AblationRecord, task: TrialTask, failed: str, tell: ReportProgress
) -> None:
    trial = book.add_trial(task, failed=failed)
    if failed:
        tell(f"{task.name(question)}: {failed}")
    else:
        loss = trial.losses[-1][1]
        tell(
            f"{task.name(question)}: {loss:.4f} nats per token after "
            f"{format_exact_duration(trial.seconds)}"
        )


def _at_once(
    question: AblationPlan,
    book: AblationRecord,
    tasks: list[TrialTask],
    jobs: int,
    tell: ReportProgress,
) -> None:
    """Run several at a time, each in a process of its own with its share of the cores."""
    waiting, running = list(tasks), dict[TrialTask, subprocess.Popen[bytes]]()
    begun = dict[TrialTask, subprocess.Popen[bytes]]()
    share = str(max(1, (os.cpu_count() or 1) // jobs))
    environment = {"OMP_NUM_THREADS": share, **os.environ}
    with telling_disk_errors(book.runs):
        book.runs.mkdir(parents=True, exist_ok=True)
    with StopSignals() as signals:
        try:
            while running or (waiting and not signals.stop_requested):
                while waiting and len(running) < jobs and not signals.stop_requested:
                    task = waiting.pop(0)
                    tell(f"[{len(tasks) - len(waiting)}/{len(tasks)}] {task.name(question)}")
                    _await_writer(book, task)
                    begun[task] = running[task] = _begin(question, book, task, environment)
                if signals.stop_requested:
                    _ask_to_stop(running)
                    break
                time.sleep(0.05)
                for task in [task for task, job in running.items() if job.poll() is not None]:
                    _take(question, book, task, running.pop(task).returncode, tell)
        finally:
            _ask_to_stop(running)
            _remove_refused(book, begun)


def _begin(
    question: AblationPlan, book: AblationRecord, task: TrialTask, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a training as a child process that ends with this one."""
    given = _arguments(question, task, book)
    words = [sys.executable, "-m", "lmlab", "train", given["system"]]
    for name in ("data", "out", "size", "tokenizer", "recipe", "epochs", "seed"):
        if given[name] is not None:
            words += [f"--{name}", str(given[name])]
    for key, value in given["settings"].items():
        words += ["--set", f"{key}={_written(value)}"]
    words += ["--resume"] if given["resume"] else []
    path = _log(book, task)
    with telling_disk_errors(path), open(path, "wb", opener=no_follow) as log:
        return start_child(words, environment=environment, output=log)


def _take(
    question: AblationPlan, book: AblationRecord, task: TrialTask, code: int, tell: ReportProgress
) -> None:
    """Record the training of a finished process, or report its failure."""
    if code == 0:
        _finished(question, book, task, "", tell)
        return
    said = _log(book, task).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    sentence = said[-1].removeprefix("lmlab: ") if said else f"it ended with code {code}."
    _finished(question, book, task, _failure(book, task, UserError(sentence)), tell)


def _ask_to_stop(running: Mapping[TrialTask, subprocess.Popen[bytes]]) -> None:
    """Ask each process to write a checkpoint and end, and wait for it."""
    for job in running.values():
        if job.poll() is None:
            job.send_signal(signal.SIGINT)
    for job in running.values():
        job.wait()


def _remove_refused(
    book: AblationRecord, begun: Mapping[TrialTask, subprocess.Popen[bytes]]
) -> None:
    """Remove logs of trainings that were refused, or stopped, before they wrote anything."""
    for task, job in begun.items():
        if job.returncode != CRASHED and not (book.runs / task.folder).exists():
            _log(book, task).unlink(missing_ok=True)
    if not any(book.runs.iterdir()):
        book.runs.rmdir()


def _log(book: AblationRecord, task: TrialTask) -> Path:
    return book.runs / f"{task.folder}.log"


def _written(value: Any) -> str:
    """A value in `--set` syntax."""
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
