"""`make crash`: each kind of fit is killed inside every write and at random moments, then resumed.

    python -m tests.crash.run --random 20 --seed 0 --jobs 2

The result must be that of a fit which was never killed, bit by bit: weights, metrics, tokenizer,
config.json, index. A report by kind of fit; the exit code is 1 where one differs or can't go on.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from lmlab.core.atomic_files import TEMPORARY
from lmlab.core.manifest import MANIFEST, DamageError, check_files
from tests.crash.faults import Fault, install
from tests.crash.fits import FITS, Fit, results_of
from tests.fuzz.server import Outcome, prepare, run_command, run_forked
from tests.fuzz.world import make_world


def arguments_of(fit: Fit, world: Path, out: Path) -> list[str]:
    return [each.format(world=world, out=out) for each in fit.arguments]


def run_with_fault(fit: Fit, world: Path, out: Path, at: int) -> tuple[Outcome, int]:
    """A fit that is killed inside its `at`-th write; how many writes there were, where it ends."""
    count_file = out.parent / "count"

    def command() -> int:
        from lmlab.cli.main import main

        fault = Fault(at, count_file)
        install(fault)
        code = main(arguments_of(fit, world, out))
        fault.tell()
        return code

    outcome = run_forked(command, folder=out.parent, seconds=120)
    return outcome, int(count_file.read_text()) if count_file.exists() else 0


def kill_after(fit: Fit, world: Path, out: Path, seconds: float) -> None:
    """A fit that is killed from outside after some time."""

    def command() -> int:
        from lmlab.cli.main import main

        signal.setitimer(signal.ITIMER_REAL, seconds)
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        return main(arguments_of(fit, world, out))

    run_forked(command, folder=out.parent, seconds=120)


def finish(fit: Fit, world: Path, out: Path) -> Outcome:
    """The same command again, with --resume where the fit can be resumed."""
    arguments = arguments_of(fit, world, out)
    if fit.resumes and (out / "config.json").exists():
        arguments.append("--resume")
    return run_command(arguments, folder=out.parent, seconds=120)


def damage_of(out: Path) -> str:
    """What is wrong with the files of runs, checkpoints and indexes; nothing where all is well.

    A run must be loadable after a kill at any moment, as soon as it has weights.
    """
    from lmlab.training.run_folder import PARTS

    for manifest in out.rglob(MANIFEST):
        folder = manifest.parent
        if any(part.startswith(TEMPORARY) for part in folder.relative_to(out).parts):
            continue
        try:
            check_files(folder, parts=PARTS)
        except DamageError as error:
            return f"{folder.relative_to(out)}: {error}"
    config = out / "config.json"
    if config.exists() and not (out / MANIFEST).exists():
        return f"{config} without {MANIFEST}"
    return ""


def check(fit: Fit, world: Path, expected: dict[str, str], kill: Any) -> str:
    """Kill a fit, finish it, compare; nothing where all is well, else what is wrong."""
    scratch = Path(tempfile.mkdtemp(prefix="crash-"))
    try:
        out = scratch / "out"
        kill(fit, world, out)
        if damage := damage_of(out):
            return f"after the kill: {damage}"
        if fit.appears_whole and results_of(out) == expected:
            return ""  # killed when all was done: the same command is refused, as nothing is lost
        finished = finish(fit, world, out)
        if finished.kind != "ok":
            return f"{finished.kind}: {finished.last_line}"
        actual = results_of(out)
        differs = [n for n in sorted(expected.keys() | actual) if expected.get(n) != actual.get(n)]
        left = [path.name for path in scratch.rglob("*") if ".writing-" in path.name]
        if differs:
            return f"differs: {', '.join(differs)}"
        return f"left behind: {', '.join(left)}" if left else ""
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def uninterrupted(fit: Fit, world: Path) -> tuple[dict[str, str], int, float]:
    """The results of an uninterrupted fit, how many writes it has, and how long it takes."""
    scratch = Path(tempfile.mkdtemp(prefix="crash-"))
    try:
        outcome, writes = run_with_fault(fit, world, scratch / "out", 0)
        if outcome.kind != "ok":
            raise RuntimeError(f"{fit.name} does not run: {outcome.last_line}")
        return results_of(scratch / "out"), writes, outcome.seconds
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def check_fit(fit: Fit, world: Path, *, every: int, moments: int, seed: int) -> list[str]:
    """A summary, and a line for each kill after which a fit did not end as it should."""
    expected, writes, seconds = uninterrupted(fit, world)
    again = uninterrupted(fit, world)[0]
    problems = [] if again == expected else ["two fits that nobody killed differ"]
    draw = Random(f"{seed}/{fit.name}")
    points = list(range(1 + draw.randrange(every), writes + 1, every))
    for at in points:
        kill = lambda f, w, o, at=at: run_with_fault(f, w, o, at)  # noqa: E731
        if wrong := check(fit, world, expected, kill):
            problems.append(f"killed inside write {at} of {writes}: {wrong}")
    for _ in range(moments):
        moment = draw.uniform(0.01, seconds)
        kill = lambda f, w, o, moment=moment: kill_after(f, w, o, moment)  # noqa: E731
        if wrong := check(fit, world, expected, kill):
            problems.append(f"killed after {moment:.3f} s of {seconds:.1f}: {wrong}")
    summary = f"{fit.name}: {len(points)} of {writes} writes, {moments} random moments"
    return [f"{summary}, {len(problems)} problems", *problems]


def _work(world: Path, first: int, options: argparse.Namespace, results: Any) -> None:
    for fit in FITS[first :: options.jobs]:
        try:
            lines = check_fit(
                fit, world, every=options.every, moments=options.random, seed=options.seed
            )
        except RuntimeError as error:
            lines = [f"{fit.name}: 1 problems", str(error)]
        results.put(lines)
    results.put(None)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--random", type=int, default=20, help="random moments for each fit")
    parser.add_argument("--every", type=int, default=1, help="of so many writes, one is killed in")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    started = time.monotonic()
    prepare()
    world = Path(tempfile.mkdtemp(prefix="crash-world-"))
    make_world(world, full=True)
    context = multiprocessing.get_context("fork")
    results: Any = context.Queue()
    workers = [
        context.Process(target=_work, args=(world, n, options, results))
        for n in range(options.jobs)
    ]
    for worker in workers:
        worker.start()
    failed, running = 0, options.jobs
    while running:
        lines = results.get()
        if lines is None:
            running -= 1
            continue
        print("\n  ".join(lines), flush=True)
        failed += len(lines) - 1
    for worker in workers:
        worker.join()
    shutil.rmtree(world, ignore_errors=True)
    print(f"seed {options.seed}, {failed} problems, {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
