"""The queue of all long experiments: what is done, what is left, and running it bit by bit.

    python benchmarks/run_queue.py --list [--only TEXT]
    python benchmarks/run_queue.py --run --data DATA [--runs runs] [--only TEXT] [--hours H]
    python benchmarks/run_queue.py --write docs/notes.md

--run starts one experiment after the other, in the order of GROUPS, each as one process with one
thread. It can be killed at any moment and begun again: what has a record is not repeated, what was
trained continues from its last checkpoint. On SIGTERM, Ctrl-C or after --hours it stops the
experiment at hand, which saves a checkpoint first. A failed one is left out until --retry; its
output is in RUNS/logs. Two runners never use the same RUNS, also while a training that a killed
runner left behind is still going. --write brings the tables and the state in a page up to date.

Experiments are declared by the benchmarks of SOURCES; see `experiment.py`. (A file named queue.py
here would hide Python's own module from every benchmark.)
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from experiment import RESULTS, Experiment, Folders

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (
    "notes/leak",
    "notes/run",
    "notes/pictures",
    "notes/claim_queue",
    "papers/papers",
    "distillation",
    "yardstick",
    "xlm",
)
"""Benchmarks with an `experiments()`, and a `write_into(page)` if a page shows their results."""
GROUPS = (
    "leak",
    "cath-l20",
    "words",
    "characters",
    "claims",
    "seeds",
    "cath-l100",
    "parents, windows, slots",
    "papers",
    "hmm",
    "gpt",
    "autoencoders, characters",
    "pictures",
    "more seeds",
    "compression",
    "yardstick",
    "xlm",
)
"""The order in which groups are run; others come after them."""
STOP_SECONDS = 300
"""How long an experiment may take to save its checkpoint when it is stopped."""
HEADER = ("group", "experiments", "done", "stopped", "failed", "core-hours left")


def load_sources() -> list[object]:
    """The modules of SOURCES."""
    for folder in ("papers", "notes", "."):
        sys.path.insert(0, str(Path(__file__).parent / folder))
    return [importlib.import_module(Path(source).name) for source in SOURCES]


def all_experiments() -> list[Experiment]:
    """The experiments of all sources in the order in which they are run."""
    declared = [item for module in load_sources() for item in module.experiments()]
    names = [item.name for item in declared]
    assert len(set(names)) == len(names), "two experiments have one name"
    return in_order(declared)


def in_order(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Sorted by group; as declared within a group."""
    rank = {group: index for index, group in enumerate(GROUPS)}
    return sorted(experiments, key=lambda item: rank.get(item.group, len(GROUPS)))


# State ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """done, running, stopped, failed or waiting, with an epoch or a reason."""

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.detail}".rstrip()


def state_of(experiment: Experiment, folders: Folders) -> State:
    """From its record, its run folder, what it left when it failed, and the lock."""
    if experiment.finished(folders):
        return State("done")
    epoch = experiment.epoch(folders)
    at = f"at epoch {epoch} of {experiment.epochs}" if epoch else ""
    if QueueLock(folders.runs).running() == experiment.name:
        return State("running", at)
    if (failure := failure_file(experiment, folders)).exists():
        return State("failed", f"({failure.read_text(encoding='utf-8').strip()})")
    return State("stopped", at) if epoch else State("waiting")


def failure_file(experiment: Experiment, folders: Folders) -> Path:
    """Holds the reason of a failure until the experiment is tried again."""
    return folders.runs / "failed" / f"{experiment.name}.txt"


class QueueLock:
    """RUNS/queue.lock, held by the runner and by what it has started, with the latter's name.

    An experiment that outlives a killed runner keeps it, since it inherits the open file.
    """

    def __init__(self, runs: Path) -> None:
        self.path = runs / "queue.lock"
        self.descriptor: int | None = None

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        if not self._take(self.descriptor):
            owner = self.path.read_text(encoding="utf-8").replace("\n", " ").strip()
            raise SystemExit(
                f"{self.path.parent} is in use by process {owner}; wait until it ends, or end it."
            )
        self.note("")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self.descriptor is not None
        os.close(self.descriptor)

    @staticmethod
    def _take(descriptor: int) -> bool:
        from lmlab.core.locks import HELD_ERRORS, lock_descriptor

        try:
            lock_descriptor(descriptor)
        except OSError as error:
            if error.errno not in HELD_ERRORS:
                raise
            return False
        return True

    def note(self, name: str, process: int | None = None) -> None:
        """Write down which process runs which experiment."""
        assert self.descriptor is not None
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, f"{process or os.getpid()}\n{name}\n".encode(), 0)

    def running(self) -> str:
        """The name of the experiment that is running; empty if none is."""
        if not self.path.exists():
            return ""
        descriptor = os.open(self.path, os.O_RDWR)
        try:
            if self._take(descriptor):
                return ""
            return self.path.read_text(encoding="utf-8").partition("\n")[2].strip()
        finally:
            os.close(descriptor)


# Running ----------------------------------------------------------------------------------------


@dataclass
class StopRequest:
    """Set by SIGTERM, Ctrl-C or the deadline."""

    deadline: float = float("inf")
    requested: bool = False
    before: dict[int, object] = field(default_factory=dict)

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self.before[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True

    def __bool__(self) -> bool:
        return self.requested or time.monotonic() >= self.deadline


def run_experiments(
    experiments: Sequence[Experiment],
    folders: Folders,
    *,
    only: str = "",
    hours: float | None = None,
) -> None:
    """Run what is not finished, one by one, until all was tried, or a stop is requested."""
    deadline = float("inf") if hours is None else time.monotonic() + 3600 * hours
    tried: set[str] = set()
    with QueueLock(folders.runs) as lock, StopRequest(deadline) as stop:
        while not stop and (experiment := next_experiment(experiments, folders, tried, only)):
            tried.add(experiment.name)
            print(
                f"{experiment.name}: about {experiment.minutes_left(folders):.0f} min", flush=True
            )
            run_experiment(experiment, folders, lock, stop)
            lock.note("")
            print(f"{experiment.name}: {state_of(experiment, folders)}", flush=True)


def next_experiment(
    experiments: Sequence[Experiment], folders: Folders, tried: set[str], only: str = ""
) -> Experiment | None:
    """The first that was not tried, is neither finished nor failed, and has what it needs."""
    by_name = {experiment.name: experiment for experiment in experiments}
    for experiment in experiments:
        if experiment.name in tried or failure_file(experiment, folders).exists():
            continue
        if not is_chosen(experiment, only):
            continue
        needed = [by_name[name] for name in experiment.needs]
        if not experiment.finished(folders) and all(each.finished(folders) for each in needed):
            return experiment
    return None


def is_chosen(experiment: Experiment, only: str) -> bool:
    """Whether its group or name contains the text."""
    return only in f"{experiment.group} {experiment.name}"


def run_experiment(
    experiment: Experiment, folders: Folders, lock: QueueLock, stop: StopRequest
) -> None:
    """Run its command to its end, or until a stop; note the reason if it fails."""
    assert lock.descriptor is not None
    log_path = folders.runs / "logs" / f"{experiment.name}.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, *experiment.arguments(folders)],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(lock.descriptor,),
            start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on
        )
        lock.note(experiment.name, process.pid)
        stopped = _wait(process, stop)
    # A negative code: ended by a signal, so it is tried again by the next runner.
    if stopped or process.returncode < 0 or experiment.finished(folders):
        return
    lines = log_path.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "no output")
    reason = last if process.returncode else f"it ended without {experiment.record}"
    failure = failure_file(experiment, folders)
    failure.parent.mkdir(parents=True, exist_ok=True)
    failure.write_text(reason[:400] + "\n", encoding="utf-8")


def _wait(process: subprocess.Popen[bytes], stop: StopRequest) -> bool:
    """Wait for its end; whether it was stopped."""
    while not stop:
        try:
            process.wait(timeout=0.5)
            return False
        except subprocess.TimeoutExpired:
            continue
    process.terminate()
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return True


# Reporting --------------------------------------------------------------------------------------


def listing(experiments: Sequence[Experiment], folders: Folders) -> str:
    """A line for each experiment: group, minutes left, name and state."""
    lines = []
    for experiment in experiments:
        left = experiment.minutes_left(folders)
        state = state_of(experiment, folders)
        lines.append(f"{experiment.group:26} {left:7.0f} min  {experiment.name}: {state}")
    hours = sum(experiment.minutes_left(folders) for experiment in experiments) / 60
    return "\n".join([*lines, f"{hours:.1f} core-hours left"])


def markdown(experiments: Sequence[Experiment], folders: Folders) -> str:
    """A table of the groups, then the experiments that were begun and are not finished."""
    lines = [f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|"]
    states = {item.name: state_of(item, folders) for item in experiments}
    for group in dict.fromkeys(item.group for item in experiments):
        items = [item for item in experiments if item.group == group]
        kinds = [states[item.name].kind for item in items]
        begun = kinds.count("stopped") + kinds.count("running")
        hours = sum(item.minutes_left(folders) for item in items) / 60
        counts = (len(items), kinds.count("done"), begun, kinds.count("failed"))
        lines.append(f"| {group} | {' | '.join(map(str, counts))} | {hours:.1f} |")
    total = sum(item.minutes_left(folders) for item in experiments) / 60
    lines += ["", f"{total:.0f} core-hours are left, by estimate."]
    begun_items = [
        f"- `{item.name}`: {states[item.name]}"
        for item in experiments
        if states[item.name].kind in ("stopped", "running", "failed")
    ]
    return "\n".join([*lines, *([""] if begun_items else []), *begun_items])


def write_into(page: Path, experiments: Sequence[Experiment], folders: Folders) -> None:
    """Bring the tables of all sources and the state of the queue in a page up to date."""
    for module in load_sources():
        if hasattr(module, "write_into"):
            module.write_into(page)
    before, begin, rest = page.read_text(encoding="utf-8").partition("<!-- queue -->")
    _, end, after = rest.partition("<!-- end of queue -->")
    assert begin and end, f"{page} has no place for the queue"
    text = f"{before}{begin}\n{markdown(experiments, folders)}\n{end}{after}"
    page.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print all experiments")
    parser.add_argument("--run", action="store_true", help="run what is not finished")
    parser.add_argument("--write", type=Path, help="update the tables and the state in this page")
    parser.add_argument("--data", type=Path, default=os.environ.get("LMLAB_DATA"))
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="run folders and logs")
    parser.add_argument("--records", type=Path, default=RESULTS, help="folder of the records")
    parser.add_argument("--only", default="", help="only those whose group or name contains this")
    parser.add_argument("--hours", type=float, help="stop after so many hours")
    parser.add_argument("--retry", action="store_true", help="try failed experiments again")
    options = parser.parse_args()
    folders = Folders(
        runs=options.runs.absolute(),
        records=options.records.absolute(),
        data=None if options.data is None else Path(options.data).absolute(),
    )
    experiments = all_experiments()
    chosen = [item for item in experiments if is_chosen(item, options.only)]
    if options.retry:
        for item in chosen:
            failure_file(item, folders).unlink(missing_ok=True)
    if options.run:
        if folders.data is None:
            parser.error("the data folder is missing; give --data or set LMLAB_DATA")
        run_experiments(experiments, folders, only=options.only, hours=options.hours)
    if options.write:
        write_into(options.write, experiments, folders)
    if options.list or not (options.run or options.write):
        print(listing(chosen, folders), flush=True)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)  # as if ended by SIGPIPE
