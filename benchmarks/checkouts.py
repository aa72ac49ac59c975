"""Speed of this checkout relative to another one, such as the commit before a refactoring.

    git worktree add ../before COMMIT
    python benchmarks/checkouts.py ../before [--systems gpt,bert] [--data grammar] [--out FILE]

Training steps (loss, gradient, clipping, optimiser), scoring of texts, and sampling token by token,
in tokens per second of CPU time. Each checkout has a process of its own, with the same threads and
allocator settings; the two alternate, and the ratio of medians is above 1 where this checkout is
faster. The peak memory of both processes is reported as well. Both checkouts need the same Python
API: `lmlab.train`, `lmlab.load`, `model.score`, `model.sample`, `system.loss`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from measuring import rate, ratio

HERE = Path(__file__).resolve().parents[1]
SYSTEMS = "gpt,bert,lstm,xlnet"
TEXTS = 64


class Checkout:
    """A process with the package of one checkout, which measures on request."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder = folder
        environment = os.environ | {
            "PYTHONPATH": f"{folder / 'src'}",
            "OMP_NUM_THREADS": str(options.threads),
        }
        command = [sys.executable, __file__, "--worker", options.data, options.size]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def request(self, *words: str) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.folder} could not measure {' '.join(words)}")
        return float(answer)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve(data: str, size: str) -> None:
    """Measure what standard input asks for, one number per line; in a process of one checkout."""
    answers, sys.stdout = sys.stdout, sys.stderr
    steppers: dict[tuple[str, str], Callable[[], int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            kind, system, seconds = line.split()
            if kind == "memory":
                answer = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            else:
                if (kind, system) not in steppers:
                    make = STEPPERS[kind]
                    steppers[kind, system] = make(system, data, size, Path(folder) / system)
                answer = rate(steppers[kind, system], float(seconds), time.process_time)
            print(answer, file=answers, flush=True)


def loaded(system: str, data: str, size: str, run: Path) -> Any:
    """The system after one step, loaded from its run."""
    import lmlab

    if not run.exists():
        lmlab.train(system, data=data, out=run, size=size, steps=1, quiet=True)
    return lmlab.load(run)


def training_stepper(system: str, data: str, size: str, run: Path) -> Callable[[], int]:
    """A function that trains on the next batch and returns the number of predicted tokens."""
    from lmlab.core.batch import Batch
    from lmlab.data.batches import LengthBatches
    from lmlab.data.corpus import open_corpus
    from lmlab.data.dataset import TokenDataset
    from lmlab.training.config import TrainingConfig
    from lmlab.training.loop import clip_gradients
    from lmlab.training.optimizers import build_optimizer

    model, corpus = loaded(system, data, size, run), open_corpus(data)
    dataset = TokenDataset.build(corpus.splits["train"], model.tokenizer, corpus.layout)
    source = LengthBatches(dataset, tokens_per_batch=1024, seed=0)
    batches: Iterator[Batch] = (batch for epoch in count() for batch in source.epoch(epoch))
    module = model.system.train()
    optimizer, parameters = build_optimizer(module, TrainingConfig()), list(module.parameters())

    def step() -> int:
        batch = next(batches)
        loss, _ = module.loss(batch)
        loss.total.backward()
        clip_gradients(parameters, 1 / loss.count.item(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return int(batch.count)

    return step


def scoring_stepper(system: str, data: str, size: str, run: Path) -> Callable[[], int]:
    """A function that scores the same texts and returns the number of their tokens."""
    from lmlab.data.corpus import open_corpus

    model, split = loaded(system, data, size, run), open_corpus(data).splits["test"]
    texts = [text for text, _ in zip(split.texts(), range(TEXTS), strict=False)]

    def step() -> int:
        return sum(score.tokens for score in model.score(texts))

    return step


def sampling_stepper(system: str, data: str, size: str, run: Path) -> Callable[[], int]:
    """A function that samples texts, the same ones each time, and returns the number of tokens."""
    model = loaded(system, data, size, run)

    def step() -> int:
        texts = [sampled.text for sampled in model.sample(TEXTS, seed=0)]
        return sum(len(model.tokenizer.encode(text)) + 1 for text in texts)

    return step


STEPPERS = {"train": training_stepper, "score": scoring_stepper, "sample": sampling_stepper}


def compare(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Ratio of medians by system and task, both checkouts in alternation."""
    sides = [Checkout(folder.resolve(), options) for folder in (HERE, options.other)]
    used, results = options.used.split(","), {}
    for system in options.systems.split(","):
        for kind in STEPPERS if system in used else ["train"]:
            for side in sides:  # the first steps are slower
                side.request(kind, system, "2")
            rounds = [
                [side.request(kind, system, str(options.seconds)) for side in sides]
                for _ in range(options.rounds)
            ]
            result = ratio([ours for ours, _ in rounds], [theirs for _, theirs in rounds])
            results[f"{kind} {system}"] = result
            show(f"{kind} {system}", result)
    memory = [[side.request("memory", "-", "0")] for side in sides]
    results["peak megabytes"] = ratio(*memory)
    show("peak megabytes", results["peak megabytes"])
    for side in sides:
        side.close()
    return results


def show(name: str, result: dict[str, float]) -> None:
    print(
        f"{name:24} {result['ours']:9.0f} {result['peer']:9.0f}  ratio {result['ratio']:.3f}  "
        f"({result['lowest']:.3f} to {result['highest']:.3f})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path, help="a worktree of the other commit")
    parser.add_argument("--systems", default=SYSTEMS, help="trained (default: %(default)s)")
    parser.add_argument(
        "--used", default="gpt,lstm", help="also score and sample (default: %(default)s)"
    )
    parser.add_argument("--data", default="grammar", help="a corpus of sentences")
    parser.add_argument("--size", default="small")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU seconds of a measurement")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    results = compare(options)
    if options.out:
        report = {"threads": options.threads, "size": options.size, "data": options.data}
        options.out.write_text(json.dumps({**report, **results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        serve(*sys.argv[2:4])
    else:
        main()
