"""Pre-training objectives on WordNet's glosses: same width, depth, tokens and batches.

    python benchmarks/pretraining.py [--runs RUNS] [--only bert] [--jobs 2] [--steps 1600]
    python benchmarks/pretraining.py --table [--write docs/pretraining.md]
    python benchmarks/pretraining.py --figure docs/images/pretraining.svg

Each system is trained by the `lmlab` command on the same subword tokens for the same number of
steps of equally many tokens, with four layers in all (an encoder-decoder has two and two). Then:

- score: nats per token of 500 held-out glosses, comparable only within a kind of score;
- cloze: accuracy on one masked token in each of 2,000 held-out glosses, by the system's method;
- accuracy of classifying other held-out glosses by the part of speech of the defined word:
  by a head on frozen features, by fine-tuning on 200 rows, and on all rows.

A `bert` and a `gpt` trained for one step are the controls. Each system has a record in
benchmarks/results/pretraining/; existing ones are not measured again, and interrupted training runs
resume.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cells import RESULTS, arguments

RECORDS = RESULTS / "pretraining"
WIDTH, LAYERS, HEADS, LENGTH, VOCABULARY = 128, 4, 4, 192, 8000
TOKENS_PER_BATCH = 1024
"""Small batches, since masked models need many steps to learn more than unigrams."""
SCORED_TEXTS, CLOZE_TEXTS = 500, 2000

ENCODERS_DECODERS = ("transformer", "mass", "t5", "bart", "pegasus", "palm")
UNCORRUPTED_INPUT = {
    **{name: {"full_mask_rate": 0.3} for name in ("mass", "t5", "bart", "pegasus", "palm")},
    "xlnet": {"left_to_right": 0.3},
}
"""A fraction of training examples in the input format of log_prob, where the paper has none."""
UNCORRUPTED_INPUT["palm"]["joint"] = True  # the default at the time of measurement
SYSTEMS = (
    "gpt",
    "bert",
    "t5",
    "xlnet",
    "glm",
    "bart",
    "electra",
    "roberta",
    "unilm",
    "albert",
    "spanbert",
    "mpnet",
    "mass",
    "pegasus",
    "palm",
    "bert-wwm",
    "ernie",
    "transformer",
    "star-transformer",
    "set-transformer",
    "lstm",
)
"""In order of execution; the LSTM is the baseline."""

CONTROLS = ("bert", "gpt")
"""Also measured after one training step, as controls."""

OWN_OPTIMIZER = {"t5": {"optimizer": "adafactor", "learning_rate": 0.03}}
"""T5's embeddings have unit variance, which Adam's fixed step size hardly changes."""

ROWS = "gloss-part-of-speech"
TASKS = {
    "frozen": ("--frozen", "--epochs", "3"),
    "200 rows": ("--examples", "200", "--epochs", "20"),
    "all rows": ("--epochs", "3"),
}


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Folder, training steps and threads of the runs."""

    runs: Path
    steps: int
    threads: int


def settings(system: str) -> list[str]:
    """The common settings that apply to a system, as --set options."""
    values = {
        "width": WIDTH,
        "layers": LAYERS // 2 if system in ENCODERS_DECODERS else LAYERS,
        "tokens_per_batch": TOKENS_PER_BATCH,
        "learning_rate": 1e-3,
        "schedule": "cosine",
        "warmup_steps": 200,
        "weight_decay": 0.01,
        "dropout": 0.1,
        "evaluate_every": 400,
        **OWN_OPTIMIZER.get(system, {}),
    }
    if system == "lstm":
        values |= {"layers": 1, "tied": True}
    else:
        values |= {"heads": HEADS, "length": LENGTH, **UNCORRUPTED_INPUT.get(system, {})}
    return [part for name, value in values.items() for part in ("--set", f"{name}={value}")]


def lmlab(*command: str, threads: int) -> str:
    """Run an lmlab command and return its output; raise with the end of stderr."""
    completed = subprocess.run(
        [sys.executable, "-m", "lmlab", *command],
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=False,
    )
    if completed.returncode:
        raise RuntimeError(f"lmlab {' '.join(command)}: {completed.stderr[-800:]}")
    return completed.stdout


def shared_tokenizer(runs: Path) -> Path:
    """Path of the subword tokenizer of all systems, trained if missing."""
    path = runs / "tokenizer.json"
    if not path.exists():
        from lmlab.data.corpus import open_corpus
        from lmlab.data.tokenizers import tokenizer_for

        runs.mkdir(parents=True, exist_ok=True)
        tokenizer_for(open_corpus("wordnet"), "bpe", size=VOCABULARY).save(path)
    return path


def held_out_file(runs: Path) -> Path:
    """Path of the held-out glosses, written if missing."""
    path = runs / "held-out.txt"
    if not path.exists():
        from lmlab.data.corpus import open_corpus

        texts = [example.text for example in open_corpus("wordnet").split("test")]
        path.write_text("\n".join(texts[:SCORED_TEXTS]) + "\n", encoding="utf-8")
    return path


def run_system(system: str, options: RunOptions, untrained: bool = False) -> None:
    name = f"{system}-untrained" if untrained else system
    path = RECORDS / f"{name}.json"
    if path.exists():
        return
    try:
        record = measure_system(system, name, replace(options, steps=1) if untrained else options)
    except RuntimeError as error:
        print(f"{name}: {error}", flush=True)
        return
    RECORDS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{name}: cloze {record['cloze']['accuracy']:.3f}", flush=True)


def measure_system(system: str, name: str, options: RunOptions) -> dict[str, Any]:
    """Train, score, run the cloze test and fine-tune."""
    run, threads = options.runs / name, options.threads
    train = ["train", system, "--data", "wordnet", "--steps", str(options.steps)]
    train += ["--tokenizer", str(shared_tokenizer(options.runs)), *settings(system)]
    resume = ["--resume"] if (run / "config.json").exists() else []
    lmlab(*train, "--out", str(run), *resume, threads=threads)
    scores = lmlab("score", str(run), str(held_out_file(options.runs)), "--json", threads=threads)
    cloze = lmlab("cloze", str(run), "--texts", str(CLOZE_TEXTS), "--json", threads=threads)
    return {
        "system": system,
        "name": name,
        "steps": options.steps,
        "settings": settings(system),
        "parameters": count_parameters(run),
        "minutes": training_minutes(run),
        "training": loss_curve(run, "train"),
        "curve": loss_curve(run, "validation"),
        "score": mean_score(json.loads(scores)),
        "cloze": json.loads(cloze),
        "tasks": {task: finetune_task(run, task, threads=threads) for task in tasks(system)},
    }


def tasks(system: str) -> list[str]:
    """Fine-tuning tasks of a system; the LSTM has no text vector for a classification head."""
    return [] if system == "lstm" else list(TASKS)


def finetune_task(run: Path, task: str, *, threads: int) -> dict[str, float]:
    out = run.with_name(f"{run.name}.{task.replace(' ', '-')}")
    command = ["finetune", str(run), "--task", "classify", "--data", ROWS, "--out", str(out)]
    resume = ["--resume"] if (out / "config.json").exists() else []
    output = lmlab(*command, *TASKS[task], *resume, "--json", threads=threads)
    metrics: dict[str, float] = json.loads(output)["metrics"]
    return metrics


def mean_score(scores: list[dict[str, Any]]) -> dict[str, Any]:
    """Nats per token over all texts."""
    total = sum(score["total"] for score in scores)
    return {
        "kind": scores[0]["kind"],
        "nats_per_token": -total / sum(score["tokens"] for score in scores),
        "texts": len(scores),
    }


def count_parameters(run: Path) -> int:
    from safetensors import safe_open

    with safe_open(run / "model.safetensors", framework="pt") as file:
        return sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118


def read_metrics(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def training_minutes(run: Path) -> float:
    return float(read_metrics(run)[-1]["seconds"]) / 60


def loss_curve(run: Path, event: str) -> list[dict[str, float]]:
    """Training or validation loss of the system's objective, by step."""
    return [
        {"step": line["step"], "loss": line["loss"]}
        for line in read_metrics(run)
        if line["event"] == event
    ]


def all_records() -> list[dict[str, Any]]:
    """All records, best cloze accuracy first."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in RECORDS.glob("*.json")]
    return sorted(records, key=lambda record: -record["cloze"]["accuracy"])


def table() -> str:
    """Markdown table of all records, with the cloze method."""
    records = all_records()
    lines = [
        "| system | parameters | minutes | score, nats per token | kind | cloze | cloze method | "
        + " | ".join(f"part of speech, {task}" for task in TASKS)
        + " |",
        "|---" * (7 + len(TASKS)) + "|",
    ]
    for record in records:
        cloze, score, task_metrics = record["cloze"], record["score"], record["tasks"]
        accuracies = [
            f"{task_metrics[task]['accuracy']:.3f}" if task in task_metrics else ""
            for task in TASKS
        ]
        variant = record["name"].removeprefix(record["system"]).replace("-", ", ")
        lines.append(
            f"| `{record['system']}`{variant} | {record['parameters']:,} "
            f"| {record['minutes']:.1f} "
            f"| {score['nats_per_token']:.3f} | {score['kind']} "
            f"| {cloze['accuracy']:.3f} ± {cloze['standard_error']:.3f} | {cloze['how']} "
            f"| {' | '.join(accuracies)} |"
        )
    measured_names = {record["name"] for record in records}
    empty = " |" * (4 + len(TASKS))
    lines += [
        f"| `{name}` | | | not run |{empty}" for name in SYSTEMS if name not in measured_names
    ]
    return "\n".join(lines)


def plot(path: Path) -> None:
    """Plot the training and held-out loss of each system, by step."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    by_name = {record["name"]: record for record in all_records()}
    names = [name for name in SYSTEMS if name in by_name]
    columns = 5
    rows = -(-len(names) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(11, 2 * rows), sharex=True)
    for axis, name in zip(axes.flat, names, strict=False):
        for curve, style in (("training", {"alpha": 0.5}), ("curve", {"marker": "o", "ms": 3})):
            points = by_name[name][curve]
            axis.plot([p["step"] for p in points], [p["loss"] for p in points], **style)
        axis.set_title(name, fontsize=9)
        axis.tick_params(labelsize=7)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    figure.supxlabel("step", fontsize=9)
    figure.supylabel("loss of its objective, nats per target", fontsize=9)
    figure.tight_layout()
    figure.savefig(path)


def insert_table(page: Path) -> None:
    """Insert the table between its two markers in a page."""
    text = page.read_text(encoding="utf-8")
    begin, end = "<!-- table pretraining -->", "<!-- end of pretraining -->"
    before, _, rest = text.partition(begin)
    page.write_text(f"{before}{begin}\n{table()}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def main() -> None:
    parser = arguments(__doc__.splitlines()[0], "runs/pretraining")
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--write", type=Path, help="insert the table into this page")
    parser.add_argument("--figure", type=Path, help="plot the loss curves to this file")
    args = parser.parse_args()
    if args.figure:
        plot(args.figure)
    if args.write:
        insert_table(args.write)
    if args.table:
        print(table())
    if args.write or args.table or args.figure:
        return
    options = RunOptions(runs=args.runs, steps=args.steps, threads=args.threads)
    shared_tokenizer(options.runs), held_out_file(options.runs)
    with ThreadPoolExecutor(args.jobs) as pool:
        for system in SYSTEMS:
            if args.only in system:
                pool.submit(run_system, system, options)
        for system in CONTROLS:
            if args.only in system:
                pool.submit(run_system, system, options, untrained=True)


if __name__ == "__main__":
    main()
