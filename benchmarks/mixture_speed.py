"""Training speed of the mixture and latent-parent systems, relative to another checkout.

    git worktree add ../before COMMIT
    python benchmarks/mixture_speed.py ../before --data DATA [--systems parent,remix] [--out FILE]
    python benchmarks/mixture_speed.py --profile --data DATA [--systems parent] > profile.txt

Whole training steps (loss, gradient, clipping, optimiser) of the notes' rows on multi30k-l20 with
their recipe, predicted tokens per second of CPU time on one thread, and by the clock. Each checkout
has a process of its own; the two take turns, and the ratio of medians is above 1 where this one is
faster. Before that each trains the same system for `--steps` steps: the largest difference of a
loss is reported. --profile prints torch's profile of ten steps instead.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from measuring import ratio

HERE = Path(__file__).resolve().parents[1]
SYSTEMS = (
    *("lstm-mixture", "rnn-mixture", "gru-mixture", "gru-minimal", "mgru", "gru-vae"),
    *("remix", "remix-aligned", "remix-rotated", "window-remix", "window-remix-sphere"),
    *("window-remix-free", "independent", "local-hmm", "local-crf", "local-crf-2"),
    *("product-bound", "window-mixture", "parent", "parent-prior", "parent-typed"),
    *("parent-permuted", "two-parents", "renewal", "renewal-typed", "slots", "slots-chain"),
)
PROTOCOL = "multi30k-l20"
NO_RECIPE = frozenset({"independent"})
"""Systems whose row has none; their settings are given."""
SETTINGS: dict[str, dict[str, Any]] = {"mgru": {"off": "4,6"}, "independent": {"states": "400"}}


class Training:
    """A training of one system on the notes' words, step by step, as `training.loop` does it."""

    def __init__(self, system: str, data: str) -> None:
        from lmlab.core.registry import find_system
        from lmlab.training.config import BUDGETS
        from lmlab.training.distributed import make_accelerator
        from lmlab.training.optimizers import build_optimizer
        from lmlab.training.system_building import build_system
        from lmlab.training.training_plan import make_training_plan

        recipe = None if system in NO_RECIPE else "multi30k"
        settings, budget = SETTINGS.get(system, {}), dict.fromkeys(BUDGETS)
        plan = make_training_plan(find_system(system), "small", recipe, settings, budget, 0)
        prepared, vocabulary = words(data, plan.training.tokens_per_batch)
        self.module: Any = build_system(system, asdict(plan.system_config), vocabulary, seed=0)
        self.module.setup_data(*prepared.flat())
        self.module.train()
        self.config, self.accelerator = plan.training, make_accelerator()
        self.optimizer = build_optimizer(self.module, plan.training)
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.batches: Iterator[Any] = (b for e in count() for b in prepared.train.epoch(e))
        self.number = 0

    def step(self) -> tuple[float, int]:
        """The loss of the next batch per token, and its number of tokens."""
        from lmlab.training.distributed import seed_step
        from lmlab.training.loop import clip_gradients

        batch = next(self.batches)
        generator = seed_step(0, self.number, self.accelerator)
        self.module.begin_step(self.number)
        self.number += 1
        loss, _ = self.module.loss(batch, generator=generator)
        loss.total.backward()
        clip_gradients(self.parameters, 1 / loss.count.item(), self.config.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.total.item() / loss.count.item(), int(batch.count)

    def rates(self, seconds: float) -> list[float]:
        """Tokens per second of CPU time, and by the clock."""
        cpu, clock, tokens = time.process_time(), time.perf_counter(), 0
        while time.process_time() - cpu < seconds:
            tokens += self.step()[1]
        return [tokens / (time.process_time() - cpu), tokens / (time.perf_counter() - clock)]

    def profile(self) -> str:
        """Torch's profile of ten steps, by time in an operation itself."""
        from torch.profiler import ProfilerActivity, profile

        for _ in range(3):
            self.step()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            tokens = sum(self.step()[1] for _ in range(10))
        table = profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=12)
        wanted = ("Name", "Self CPU %", "Self CPU", "# of Calls")
        return f"{tokens} tokens\n" + narrowed(str(table), wanted)


def narrowed(table: str, wanted: tuple[str, ...]) -> str:
    """Some columns of torch's table, whose columns begin two spaces apart."""
    lines = table.split("\n")
    edges = [(start, start + len(part)) for start, part in _columns(lines[0])]
    heads = [lines[1][a:b].strip() for a, b in edges]
    chosen = [edge for edge, head in zip(edges, heads, strict=True) if head in wanted]
    rows = [line for line in lines[1:] if line.strip()]
    return "\n".join("  ".join(line[a:b] for a, b in chosen).rstrip() for line in rows)


def _columns(rule: str) -> Iterator[tuple[int, str]]:
    """Start and dashes of each column of a line of dashes."""
    start = 0
    for part in rule.split("  "):
        if part:
            yield start, part
        start += len(part) + 2


@cache
def words(data: str, tokens_per_batch: int) -> Any:
    """The notes' words as batches, and the vocabulary."""
    from lmlab.data.corpus import open_corpus
    from lmlab.data.tokenizers import tokenizer_for
    from lmlab.training.config import TrainingConfig
    from lmlab.training.data_loaders import training_data

    corpus = open_corpus(f"{PROTOCOL}:{data}")
    config = TrainingConfig(tokens_per_batch=tokens_per_batch, seed=0)
    tokenizer = tokenizer_for(
        corpus, None, min_count=config.min_count, size=config.vocabulary_size, source=None
    )
    return training_data(corpus, tokenizer, config, progress=False), tokenizer.vocabulary


def serve(data: str) -> None:
    """Answer requests of standard input, a line of JSON each; in a process of one checkout."""
    from lmlab.core.allocator import retain_freed_memory

    retain_freed_memory()
    answers, sys.stdout = sys.stdout, sys.stderr
    trainings: dict[str, Training] = {}
    for line in sys.stdin:
        kind, system, number = line.split()
        training = trainings.get(system) or Training(system, data)
        trainings = {system: training}
        answer: Any
        if kind == "losses":
            answer = [training.step()[0] for _ in range(int(number))]
        else:
            answer = training.rates(float(number)) if kind == "rates" else training.profile()
        print(json.dumps(answer), file=answers, flush=True)


class Checkout:
    """A process with the package of one checkout."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder = folder
        environment = os.environ | {"PYTHONPATH": f"{folder / 'src'}", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", str(data)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def request(self, kind: str, system: str, number: float) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{kind} {system} {number}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.folder} could not train {system}")
        return json.loads(answer)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def commit_of(folder: Path) -> str:
    command = ["git", "-C", str(folder), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def compare(sides: list[Checkout], system: str, options: argparse.Namespace) -> dict[str, Any]:
    """Equality of losses, and ratios of speed, both checkouts in turn."""
    losses = [side.request("losses", system, options.steps) for side in sides]
    difference = max((abs(a - b) for a, b in zip(*losses, strict=True)), default=0.0)
    rounds = [
        [side.request("rates", system, options.seconds) for side in sides]
        for _ in range(options.rounds)
    ]
    by_clock = ratio([a[1] for a, _ in rounds], [b[1] for _, b in rounds])
    return {
        "steps": options.steps,
        "largest difference of a loss": difference,
        "last loss": losses[0][-1] if losses[0] else None,
        "tokens per CPU second": ratio([a[0] for a, _ in rounds], [b[0] for _, b in rounds]),
        "tokens per second": by_clock,
    }


def show(system: str, result: dict[str, Any]) -> None:
    speed = result["tokens per CPU second"]
    print(
        f"{system:20} {speed['ours']:7.0f} {speed['peer']:7.0f}  ratio {speed['ratio']:.2f} "
        f"({speed['lowest']:.2f} to {speed['highest']:.2f}), by the clock "
        f"{result['tokens per second']['ratio']:.2f}, losses differ by "
        f"{result['largest difference of a loss']:.1e}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path, nargs="?", help="a worktree of the other commit")
    parser.add_argument("--data", type=Path, default=os.environ.get("LMLAB_DATA"))
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU seconds of a measurement")
    parser.add_argument("--steps", type=int, default=100, help="steps whose losses are compared")
    parser.add_argument("--profile", action="store_true", help="print profiles of one checkout")
    parser.add_argument("--out", type=Path, help="write the figures as JSON, system by system")
    options = parser.parse_args()
    if options.data is None or not (options.profile or options.other):
        parser.error("give --data DATA, and a worktree to compare with, or --profile")
    if options.profile:
        side = Checkout((options.other or HERE).resolve(), options.data)
        for system in options.systems.split(","):
            print(f"{system}: {side.request('profile', system, 0)}\n", flush=True)
        return
    sides = [Checkout(folder.resolve(), options.data) for folder in (HERE, options.other)]
    report: dict[str, Any] = {
        "command": "python benchmarks/mixture_speed.py ../before --data DATA",
        "commits": [commit_of(side.folder) for side in sides],
        "threads": 1,
        "corpus": PROTOCOL,
        "systems": {},
    }
    for system in options.systems.split(","):
        report["systems"][system] = compare(sides, system, options)
        show(system, report["systems"][system])
        if options.out:
            options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for side in sides:
        side.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        serve(sys.argv[2])
    else:
        main()
