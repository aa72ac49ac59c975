"""`make fuzz`: N inputs, half damaged files and half commands, over several processes.

    python -m tests.fuzz.run --inputs 10000 --seed 0 --jobs 2

Replays the cases in tests/fuzz/cases first. Prints outcomes by format and by verb with the share
that executed, and writes every failure as a case: once it lies in tests/fuzz/cases it is replayed
here and, where the small world has what it needs, in `make test`.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.formats import TARGETS, DamagedFile, draw_damaged
from tests.fuzz.options import draw_command, verbs
from tests.fuzz.server import Outcome, prepare, run_command
from tests.fuzz.world import LARGE, make_world

CASES = sorted((Path(__file__).parent / "cases").glob("*.json"))
"""Inputs that failed once."""
FREQUENT = {"train": 12, "score": 4, "sample": 6, "fill": 3, "translate": 3, "finetune": 2}
"""Verbs with more options get more inputs; all others one share."""
LONG = "demo"
"""Has no options, and takes minutes."""


def one_input(
    world: Path, number: int, seed: int, *, full: bool
) -> tuple[str, str, dict[str, Any]]:
    """The group, the name and the case of input `number`; the same for the same seed."""
    draw = Random(f"{seed}/{number}")
    if number % 2:
        target = draw.choice([each for each in TARGETS if full or each.small])
        damaged = draw_damaged(world, target, draw)
        return "file", target.name, case_of(damaged)
    every = [verb for verb in verbs() for _ in range(FREQUENT.get(verb, 1)) if verb != LONG]
    if not full:
        every = ["systems", "find", "data describe", "score", "sample", "cloze", "index info"]
    command = draw_command(draw.choice(every), draw)
    return "verb", command.verb, {"arguments": list(command.arguments), "stdin": command.stdin}


def case_of(damaged: DamagedFile) -> dict[str, Any]:
    """A damaged file as JSON: which target, its bytes, and the command."""
    return {
        "target": damaged.target.name,
        "arguments": list(damaged.arguments),
        "content": base64.b64encode(damaged.content).decode(),
    }


def replay(case: dict[str, Any], world: Path) -> Outcome:
    """Run a case in a fresh scratch folder."""
    scratch = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        if "target" in case:
            target = next(each for each in TARGETS if each.name == case["target"])
            damaged = DamagedFile(
                target=target,
                content=base64.b64decode(case["content"]),
                arguments=tuple(case["arguments"]),
            )
            arguments = damaged.place(world, scratch)
        else:
            named = {"{world}": str(world), "{out}": str(scratch / "out")}
            arguments = list(case["arguments"])
            for name, path in named.items():
                arguments = [each.replace(name, path) for each in arguments]
        return run_command(arguments, folder=scratch, stdin=case.get("stdin"))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def read_case(path: Path) -> dict[str, Any]:
    """A case of tests/fuzz/cases."""
    return dict(json.loads(path.read_text()))


def is_small(case: dict[str, Any]) -> bool:
    """Whether the small world has all that a case needs."""
    needed = {
        part.split("/")[0] for each in case["arguments"] for part in each.split("{world}/")[1:]
    }
    if "target" in case:
        needed.add(next(each.path for each in TARGETS if each.name == case["target"]))
    return not needed & LARGE


def work(world: Path, first: int, options: argparse.Namespace, results: Any) -> None:
    """One of the processes; None is its last result, whatever happens."""
    try:
        run_inputs(world, first, options, results)
    finally:
        results.put(None)


def run_inputs(world: Path, first: int, options: argparse.Namespace, results: Any) -> None:
    """Every `jobs`-th case and input."""
    for path in CASES[first :: options.jobs]:
        case = read_case(path)
        if not options.small or is_small(case):
            outcome = replay(case, world)
            line = outcome.last_line[:160]
            results.put(("case", path.stem, outcome.kind, outcome.seconds, line, -1))
    for number in range(first, options.inputs, options.jobs):
        group, name, case = one_input(world, number, options.seed, full=not options.small)
        outcome = replay(case, world)
        case |= {"found": outcome.last_line[:300], "kind": outcome.kind}
        if outcome.failed:
            path = Path(options.found) / f"{outcome.kind}-{options.seed}-{number}.json"
            path.write_text(json.dumps({**case, "trace": outcome.err[-3000:]}, indent=1))
        results.put((group, name, outcome.kind, outcome.seconds, outcome.last_line[:160], number))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--small", action="store_true", help="the short world only")
    parser.add_argument("--found", default="build/fuzz", help="where failures are written")
    options = parser.parse_args()
    started = time.monotonic()
    prepare()
    Path(options.found).mkdir(parents=True, exist_ok=True)
    world = Path(tempfile.mkdtemp(prefix="fuzz-world-"))
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        missing = make_world(world, full=not options.small)
    for target in TARGETS:
        if (target.small or not options.small) and not (world / target.path / target.file).exists():
            missing.append(target.name)
    if missing:
        print(f"could not be made: {', '.join(missing)}", file=sys.stderr)
        return 1
    results: Any = multiprocessing.get_context("fork").Queue()
    workers = [
        multiprocessing.get_context("fork").Process(target=work, args=(world, n, options, results))
        for n in range(options.jobs)
    ]
    for worker in workers:
        worker.start()
    failed = report(results, options.jobs)
    for worker in workers:
        worker.join()
        failed += worker.exitcode != 0
    shutil.rmtree(world, ignore_errors=True)
    print(f"seed {options.seed}, {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


def report(results: Any, jobs: int) -> int:
    """Print outcomes as a table; how many failed."""
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    spent: dict[tuple[str, str], float] = defaultdict(float)
    running = jobs
    while running:
        result = results.get()
        if result is None:
            running -= 1
            continue
        group, name, kind, seconds, line, number = result
        counts[group, name][kind] += 1
        spent[group, name] += seconds
        if kind in ("unclear", "traceback", "hang", "killed", "memory"):
            print(f"{kind}: input {number}, {name} ({seconds:.1f} s): {line}", flush=True)
    for (group, name), kinds in sorted(counts.items()):
        total = sum(kinds.values())
        summary = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        each = spent[group, name] / total
        print(
            f"{group} {name}: {total}, {kinds['ok'] / total:.0%} executed ({summary}), {each:.2f} s"
        )
    for group in ("case", "file", "verb"):
        kinds = sum((c for (g, _), c in counts.items() if g == group), Counter())
        total = max(1, sum(kinds.values()))
        print(f"all {group}s: {total} inputs, {kinds['ok'] / total:.1%} executed, {dict(kinds)}")
    every = sum(counts.values(), Counter())
    return sum(every[kind] for kind in ("unclear", "traceback", "hang", "killed"))


if __name__ == "__main__":
    sys.exit(main())
