"""The trainings of an ablation and their record: finished ones are kept, others resumed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from lmlab.core.atomic_files import write_json
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
from lmlab.experiments.engine import run_tasks
from lmlab.experiments.executors import Executor, remove_if_empty
from lmlab.experiments.tasks import Task, TaskOutcome
from lmlab.experiments.training_tasks import HELD_OUT_SPLITS, TrainingOutcome, TrainingTask
from lmlab.training.run_folder import RunFolder
from lmlab.training.system_building import build_system
from lmlab.training.training_logs import format_exact_duration, read_metrics

RECORD_FILE = "ablation.json"
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
    plan: AblationPlan, out: Path, *, executor: Executor, threads: int, report: ReportProgress
) -> Ablation:
    """Train what is missing; after each training the record is rewritten."""
    record = AblationRecord(plan, out)
    source = _AblationSource(record, threads=threads, report=report)
    if source.finished:
        report(f"{source.finished} of {source.total} trainings were done before")
    if source.finished == source.total:
        record.write()  # nothing to train, but the table may have changed
        return record.ablation()
    try:
        run_tasks(source, executor)
    finally:
        remove_if_empty(record.runs)
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


class _AblationSource:
    """The trainings of an ablation that are missing in its record, in order."""

    def __init__(self, record: AblationRecord, *, threads: int, report: ReportProgress) -> None:
        planned = _tasks(record.plan)
        missing = [task for task in planned if not record.is_finished(task)]
        self.total, self.finished = len(planned), len(planned) - len(missing)
        self._record, self._threads, self._report = record, threads, report
        self._missing, self._waiting = len(missing), deque(missing)
        self._given: dict[str, TrialTask] = {}

    def next_task(self) -> Task | None:
        if not self._waiting:
            return None
        task = self._waiting.popleft()
        self._given[task.folder] = task
        number = self._missing - len(self._waiting)
        self._report(f"[{number}/{self._missing}] {task.name(self._record.plan)}")
        return _training_task(self._record, task, self._threads).plain()

    def record(self, plain: TaskOutcome) -> None:
        """A training that diverged to non-finite numbers is a result; any other error is raised."""
        outcome = TrainingOutcome.of(plain)
        task = self._given[outcome.name]
        if outcome.failure and not outcome.diverged:
            raise UserError(outcome.failure)
        trial = self._record.add_trial(task, failed=outcome.failure)
        result = outcome.failure
        if not result:
            duration = format_exact_duration(trial.seconds)
            result = f"{trial.losses[-1][1]:.4f} nats per token after {duration}"
        self._report(f"{task.name(self._record.plan)}: {result}")


def _training_task(record: AblationRecord, task: TrialTask, threads: int) -> TrainingTask:
    plan = record.plan
    return TrainingTask(
        name=task.folder,
        out=str(record.runs / task.folder),
        system=system_argument(plan.card),
        options={
            "data": plan.data,
            "size": plan.plan.size,
            "settings": {**plan.given, "off": ",".join(map(str, task.disabled))},
            "tokenizer": plan.tokenizer,
            "recipe": plan.plan.recipe,
            "epochs": plan.plan.training.epochs,
            "seed": task.seed,
        },
        threads=threads,
    )
