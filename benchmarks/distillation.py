"""A small model alone, distilled from a larger one, or compressed by module replacing.

    python benchmarks/distillation.py --data DATA [--system gpt] [--long] [--seeds 3]
    python benchmarks/distillation.py --table [--long]

On multi30k's captions, for one causal and one masked system: a teacher of six layers (one seed),
and students of two layers and the same width, all trained for the same number of steps from the
same tokenizer:

    alone            the student by itself
    soft targets     --teacher, temperature 2, half of the loss
    hidden states    the same, with the squared error to the teacher's hidden states
    first layers     begun with the teacher's embeddings, output and first two layers, then alone
    module replacing --predecessor: BERT-of-Theseus, half of the steps with replacing

What is compared is the validation loss after the last step; nothing is selected by it. Every
training is a run below --runs that resumes where it was stopped; existing records are not made
again. The default takes about three CPU minutes, --long an hour and a half; the queue has the
latter.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiment import Experiment, Folders
from record_file import RESULTS, Record, add_missing, make_parser, mean_and_half_range, read_records

SYSTEMS = ("gpt", "roberta")
HIDDEN_STATE_WEIGHT = {"gpt": 0.1, "roberta": 0.1}
"""A masked model has about seven positions for each target."""
METHODS = ("alone", "soft targets", "hidden states", "first layers", "module replacing")
SEEDS = 3
WIDTH, TEACHER_LAYERS, STUDENT_LAYERS = 64, 6, 2


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Steps of the teacher and of each student."""

    name: str
    teacher: int
    student: int
    minutes: float
    """Of one system with all its students, on one core."""

    @property
    def record(self) -> str:
        return f"distillation-{self.name}.json"


SHORT = Budget(name="short", teacher=800, student=250, minutes=2)
LONG = Budget(name="long", teacher=12000, student=6000, minutes=45)


def settings(system: str) -> dict[str, Any]:
    own = {"full_sentences": False} if system == "roberta" else {}
    return own | {
        "width": WIDTH,
        "heads": 4,
        "length": 64,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "learning_rate": 2e-3,
        "schedule": "cosine",
        "warmup_steps": 50,
        "tokens_per_batch": 512,
        "weight_decay": 0.01,
        "vocabulary_size": 2000,
        "evaluate_every": 10**9,  # once, after the last step
    }


def method_options(system: str, method: str, teacher: Path) -> dict[str, Any]:
    """What a method adds to the options and settings of a student."""
    own: dict[str, Any] = {}
    if method == "alone":
        return {"tokenizer": str(teacher / "tokenizer.json"), "size": "small", "settings": own}
    if method in ("soft targets", "hidden states"):
        own = {"soft_target_weight": 0.5, "soft_target_temperature": 2.0}
        if method == "hidden states":
            own["hidden_state_weight"] = HIDDEN_STATE_WEIGHT[system]
        return {"teacher": teacher, "size": "small", "settings": own}
    if method == "first layers":
        own = {"replacing_steps": 0}
    return {"predecessor": teacher, "settings": own}


def train_run(system: str, data: str, out: Path, seed: int, steps: int, **options: Any) -> Record:
    """Train or resume a run; stops the benchmark where that was interrupted."""
    from lmlab.training.train import train

    chosen, start = settings(system) | options.pop("settings", {}), time.process_time()
    resumed = (out / "config.json").exists()
    if resumed:
        result = train(system, data=data, out=out, resume=True, quiet=True, steps=steps)
    else:
        result = train(
            system,
            data=data,
            out=out,
            seed=seed,
            settings=chosen,
            steps=steps,
            quiet=True,
            **options,
        )
    if result.reason == "interrupted":
        sys.exit(130)
    seconds = None if resumed else round(time.process_time() - start, 1)
    return {"loss": result.best, "parameters": result.parameters, "cpu_seconds": seconds}


def train_teacher(system: str, data: str, runs: Path, budget: Budget) -> Record:
    return train_run(
        system,
        data,
        runs / f"{system}.teacher",
        0,
        budget.teacher,
        size="small",
        settings={"layers": TEACHER_LAYERS},
    )


def train_student(
    system: str, method: str, seed: int, data: str, runs: Path, budget: Budget
) -> Record:
    options = method_options(system, method, runs / f"{system}.teacher")
    options["settings"] |= {"layers": STUDENT_LAYERS}
    out = runs / f"{system}.{method.replace(' ', '-')}.{seed}"
    return train_run(system, data, out, seed, budget.student, **options)


def table(records: list[Record]) -> str:
    """Markdown: loss and CPU seconds (of trainings that were not interrupted) by system."""
    lines = [
        "| | " + " | ".join(f"{system}: loss | s" for system in SYSTEMS) + " |",
        "|---" * (1 + 2 * len(SYSTEMS)) + "|",
    ]
    for method in ("teacher", *METHODS):
        cells = []
        for system in SYSTEMS:
            rows = [r for r in records if (r["system"], r["method"]) == (system, method)]
            seconds = [row["cpu_seconds"] for row in rows if row["cpu_seconds"] is not None]
            cells.append(mean_and_half_range([row["loss"] for row in rows]))
            cells.append(f"{sum(seconds) / len(seconds):.0f}" if seconds else "")
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


# The queue --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CompressionExperiment(Experiment):
    """Finished when the file has all records of its system."""

    system: str

    def done(self, folders: Folders) -> int:
        records = read_records(folders.records / self.record)
        return sum(record["system"] == self.system for record in records)

    def finished(self, folders: Folders) -> bool:
        return self.done(folders) >= 1 + SEEDS * len(METHODS)

    def minutes_left(self, folders: Folders) -> float:
        return self.minutes * (1 - min(self.done(folders) / (1 + SEEDS * len(METHODS)), 1.0))


def experiments() -> list[Experiment]:
    """The long version, one experiment for each system."""
    folders = ("--data", "{data}", "--runs", "{runs}/distillation", "--records", "{records}")
    return [
        CompressionExperiment(
            name=f"distillation.{system}",
            group="compression",
            command=("benchmarks/distillation.py", "--long", "--system", system, *folders),
            minutes=LONG.minutes,
            record=LONG.record,
            system=system,
        )
        for system in SYSTEMS
    ]


def write_into(page: Path) -> None:
    """The queue's page shows no results of this benchmark; they are in docs/distillation.md."""


def main() -> None:
    parser = make_parser(__doc__.splitlines()[0], Path(), SEEDS)
    parser.add_argument("--data", type=Path, help="folder with multi30k in it")
    parser.add_argument("--runs", type=Path, default=Path("runs") / "distillation")
    parser.add_argument("--records", type=Path, default=RESULTS)
    parser.add_argument("--system", choices=SYSTEMS, help="only this one")
    parser.add_argument("--long", action="store_true", help="24 times as many steps")
    options = parser.parse_args()
    budget = LONG if options.long else SHORT
    path = options.records / budget.record
    if options.table:
        print(table(read_records(path)))
        return
    if options.data is None:
        parser.error("the data folder is missing; give --data")

    def make(system: str, method: str, seed: int) -> Record:
        data, runs = f"multi30k:{options.data / 'multi30k'}", options.runs / budget.name
        if method == "teacher":
            return train_teacher(system, data, runs, budget)
        return train_student(system, method, seed, data, runs, budget)

    start = time.perf_counter()
    chosen = [options.system] if options.system else list(SYSTEMS)
    fields = [{"system": s, "method": "teacher", "seed": 0} for s in chosen]
    fields += [
        {"system": s, "method": method, "seed": seed}
        for seed in range(options.seeds)
        for s in chosen
        for method in METHODS
    ]
    records = add_missing(path, fields, make)
    print(f"{table(records)}\n{(time.perf_counter() - start) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
