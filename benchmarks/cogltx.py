"""CogLTX against simple strategies for texts longer than the window, on long bAbI stories.

    python benchmarks/cogltx.py --babi FOLDER [--tasks 1 2 5 15] [--words 200] [--steps 600]
        [--learning-rate 2e-3] [--seeds 3] [--ways head tail …] [--out FILE.json]
    python benchmarks/cogltx.py --draw FILE.json --figure FILE.svg
    python benchmarks/cogltx.py --babi FOLDER --last-giving

bAbI stories are extended by distractor sentences to a minimum number of words, several times the
window of 64 tokens; `lmlab/tasks/long_context/long_babi.py` chooses sentences that do not change
the answer. Tasks 1, 2 and 5 are span extraction, task 15 is classification. Without --babi the rows
are the built-in `capitals-long`, and there is no first stage. For each seed a small `cogltx` is
first fine-tuned on the original stories, truncated to the window and without relevance labels
(--short-steps; for task 2 on those of task 1 before); from there it is fine-tuned on the long ones
by every strategy, with the same number of steps of the same size:

- answers: exact match or accuracy on the test questions. A question whose supporting sentence was
  truncated counts like any other.
- read: the share of supporting sentences in the encoded blocks, and of questions with all of them.
- short: the first stage itself, on the original stories.
- marks: precision and recall of the unsupervised relevance labels of the training texts at the end.

Results are saved to --out after each fine-tuning and not measured again. --last-giving trains
nothing: it counts the questions of task 5 that the last giving event of a text answers, a shortcut
that a model may learn instead of who gave what to whom.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from finishing import finished

import lmlab
from lmlab.core.tensor_files import read_tensors
from lmlab.tasks.long_context.long_babi import long_babi
from lmlab.tasks.task_registry import find_task
from lmlab.tasks.task_rows import read_splits

SYSTEM = {
    "width": 64,
    "layers": 3,  # fewer layers or larger batches hardly learn to look up one name by another
    "heads": 4,
    "length": 64,
    "positions": "rotary",  # learned positions take far longer to find the person of a sentence
    "pre_norm": True,
    "block_size": 8,  # a sentence of bAbI has at most eight words
    "learning_rate": 2e-3,
    "tokens_per_batch": 1024,
}
TRAINING = {"tokens_per_batch": 1024, "warmup_steps": 30}
SETTINGS = ("words", "steps", "short_steps", "base_steps", "learning_rate", "rows", "test")
"""Options saved in the record."""
STRATEGIES = ("head", "tail", "head-tail", "windows", "pooling", "labels", "interventions")
"""The last two are MemRecall, named by the supervision of its relevance scorer."""
CURRICULUM = {2: (1,)}
"""Earlier fine-tuning stages of a task: two supporting facts after one."""
TEXTS = 500
"""Training texts for pre-training."""


def task_of(options: argparse.Namespace, number: int) -> str:
    """The name of the fine-tuning task."""
    return "classify" if options.babi is not None and number == 15 else "span"


def splits_of(options: argparse.Namespace, task_number: int, words: int) -> dict[str, list[Any]]:
    """The splits of a task, with texts of at least `words` words."""
    task = find_task(task_of(options, task_number))
    if options.babi is None:
        splits = read_splits("capitals-long", task)
    else:
        splits = long_babi(
            str(options.babi / f"qa{task_number}"), as_label="label" in task.fields, words=words
        )
    limits = {"train": options.rows, "validation": 200, "test": options.test}
    return {split: rows[: limits[split]] for split, rows in splits.items()}


def train_base(splits: dict[str, list[Any]], folder: Path, steps: int) -> Path:
    """Pre-train a small CogLTX on the training texts (four-sentence chunks) and questions."""
    lines = []
    for row in splits["train"][:TEXTS]:
        sentences = row["text"].split(" . ")
        for first in range(0, len(sentences), 4):
            lines.append(" . ".join(sentences[first : first + 4]))
        lines.append(row["question"])
    text = folder / "text.txt"
    text.write_text("".join(f"{line.strip()}\n" for line in lines), encoding="utf-8")
    result = finished(lmlab.train(
        "cogltx", data=text, out=folder / "base", size="tiny", settings=SYSTEM, steps=steps,
        quiet=True,
    ))  # fmt: skip
    return result.path


def write_splits(splits: dict[str, list[Any]], folder: Path) -> Path:
    folder.mkdir()
    for split, rows in splits.items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    return folder


def finetune_and_evaluate(
    base: Path,
    rows: Path,
    task: str,
    strategy: str,
    out: Path,
    *,
    seed: int,
    steps: int,
    learning_rate: float,
) -> dict[str, Any]:
    """Fine-tune on the rows with one long-text strategy and return the metrics."""
    is_memrecall = strategy in ("labels", "interventions")
    start = time.process_time()
    result = lmlab.finetune(
        base,
        task=task,
        data=rows,
        out=out,
        long="memrecall" if is_memrecall else strategy,
        judge=strategy if is_memrecall else None,
        steps=steps,
        seed=seed,
        settings={**TRAINING, "learning_rate": learning_rate, "evaluate_every": max(1, steps // 5)},
        quiet=True,
    )
    record: dict[str, Any] = {
        "cpu_seconds": time.process_time() - start,
        "right": result.metrics.get("exact_match", result.metrics.get("accuracy")),
        "read": result.metrics["relevant_read"],
        "all_read": result.metrics["all_relevant_read"],
        "majority": result.metrics.get("majority"),
        "unused_rows": result.dropped,
    }
    if strategy == "interventions":
        record["marks"] = relevance_label_metrics(out, rows, task)
    return record


def relevance_label_metrics(run: Path, rows: Path, task: str) -> dict[str, float]:
    """Precision and recall of a run's final relevance labels against the rows' gold labels."""
    model = lmlab.load_task(run)
    splits = read_splits(rows, find_task(task))
    prepared = model.reading.prepare(splits["train"], training=True)
    examples: Any = prepared.examples  # type: ignore[attr-defined]
    all_labels = read_tensors(run / "model.safetensors")["marks"].bool().tolist()
    hits = predicted = gold = 0
    for example, labels in zip(examples, all_labels, strict=True):
        assert example.relevant is not None
        relevant = [m or c for m, c in zip(labels, example.contains_answer, strict=False)]
        hits += sum(a and b for a, b in zip(relevant, example.relevant, strict=True))
        predicted, gold = predicted + sum(relevant), gold + sum(example.relevant)
    return {"precision": hits / max(predicted, 1), "recall": hits / max(gold, 1)}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    settings = {name: getattr(options, name) for name in SETTINGS}
    report: dict[str, Any] = {"settings": settings, "system": SYSTEM, "records": []}
    if options.out and options.out.exists():
        report = json.loads(options.out.read_text(encoding="utf-8"))
        if report["settings"] != settings:
            raise SystemExit(f"{options.out} was measured with {report['settings']}.")
    for number in options.tasks if options.babi else [0]:
        done = {(r["way"], r["seed"]) for r in report["records"] if r["task"] == number}
        # Vectors pooled over windows have no answer positions.
        is_span = task_of(options, number) == "span"
        strategies = [
            strategy for strategy in options.ways if not (is_span and strategy == "pooling")
        ]
        planned = [(strategy, seed) for seed in range(options.seeds) for strategy in strategies]
        if pending := [pair for pair in planned if pair not in done]:
            measure_task(options, number, pending, report)
    report["means"] = means(report["records"])
    return report


def measure_task(
    options: argparse.Namespace, number: int, pending: list[tuple[str, int]], report: dict[str, Any]
) -> None:
    """Fine-tune each strategy and seed from that seed's run on the original stories."""
    task = task_of(options, number)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        splits = splits_of(options, number, options.words)
        rows = write_splits(splits, folder / "rows")
        base = train_base(splits, folder, options.base_steps)
        for strategy, seed in pending:
            # The built-in rows have no short form.
            initial_run = (
                finetune_short(options, number, seed, base, report) if options.babi else base
            )
            out = folder / f"{strategy}-{seed}"
            budget = {"steps": options.steps, "learning_rate": options.learning_rate}
            metrics = finetune_and_evaluate(
                initial_run, rows, task, strategy, out, seed=seed, **budget
            )
            save_record(
                report, {"task": number, "way": strategy, "seed": seed, **metrics}, options.out
            )


def finetune_short(
    options: argparse.Namespace, number: int, seed: int, base: Path, report: dict[str, Any]
) -> Path:
    """Fine-tune on the original stories, after the tasks of `CURRICULUM`; return the run."""
    run = base
    for stage in (*CURRICULUM.get(number, ()), number):
        initial_run, run = run, base.parent / f"short-{stage}-{seed}"
        if run.exists():
            continue
        rows = base.parent / f"{run.name}-rows"
        write_splits(splits_of(options, stage, words=1), rows)
        task = task_of(options, stage)
        budget = {"steps": options.short_steps, "learning_rate": options.learning_rate}
        metrics = finetune_and_evaluate(initial_run, rows, task, "tail", run, seed=seed, **budget)
        if stage == number:
            save_record(
                report, {"task": number, "way": "short", "seed": seed, **metrics}, options.out
            )
    return run


def save_record(report: dict[str, Any], record: dict[str, Any], out: Path | None) -> None:
    """Add a record, replacing an earlier one with the same key."""
    key = ("task", "way", "seed")
    others = [r for r in report["records"] if any(r[name] != record[name] for name in key)]
    report["records"] = [*others, record]
    print(json.dumps(record), flush=True)
    if out is not None:
        out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def means(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard deviation over seeds, by task and strategy."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        groups[record["task"], record["way"]].append(record)
    lines = []
    for (task, strategy), group in groups.items():
        line: dict[str, Any] = {"task": task, "way": strategy, "seeds": len(group)}
        for name in ("right", "read", "all_read"):
            values = [record[name] for record in group]
            line[name] = statistics.mean(values)
            line[f"{name}_spread"] = statistics.stdev(values) if len(values) > 1 else 0.0
        lines.append(line)
    return lines


def print_table(report: dict[str, Any]) -> None:
    print("| task | strategy | seeds | correct | supporting encoded | all of them |")
    print("|---|---|---|---|---|---|")
    for line in report["means"]:
        figures = [
            f"{line[name]:.3f} ± {line[f'{name}_spread']:.3f}"
            for name in ("right", "read", "all_read")
        ]
        print(f"| {line['task'] or 'capitals-long'} | {line['way']} | {line['seeds']} | "
              f"{' | '.join(figures)} |")  # fmt: skip


def last_giving_accuracy(rows: list[Any]) -> float:
    """The share of questions of task 5 that the last giving event of the text answers."""
    correct = 0
    for row in rows:
        events = re.findall(r"(\w+) (?:gave|handed|passed) the (\w+) to (\w+)", row["text"])
        giver, item, receiver = events[-1]
        question = row["question"]
        if question.startswith("What"):
            answer = item
        elif question.startswith(("Who received", "Who did")):
            answer = receiver
        else:
            answer = giver
        correct += answer == row["answer"]
    return correct / len(rows)


def plot(records: list[dict[str, Any]], path: Path) -> None:
    """Plot accuracy by strategy: one panel per task, one point per seed."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    tasks = sorted({record["task"] for record in records})
    figure, panels = plt.subplots(
        1, len(tasks), figsize=(2.6 * len(tasks), 2.6), squeeze=False, sharey=True,
        layout="constrained",
    )  # fmt: skip
    names = ("short", *STRATEGIES)[::-1]
    for panel, task in zip(panels[0], tasks, strict=True):
        for height, strategy in enumerate(names):
            values = [r["right"] for r in records if (r["task"], r["way"]) == (task, strategy)]
            panel.plot(values, [height] * len(values), "o", color="#555555", alpha=0.6)
            if values:
                panel.plot([statistics.mean(values)], [height], "|", color="black", markersize=14)
        panel.set(xlim=(-0.03, 1.03), xlabel="accuracy", title=f"task {task}")
    labels = {strategy: f"memrecall, {strategy}" for strategy in STRATEGIES[-2:]} | {
        "short": "original stories"
    }
    panels[0][0].set_yticks(
        range(len(names)), [labels.get(strategy, strategy) for strategy in names]
    )
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--babi", type=Path, help="folder of the bAbI files (qa1_train.txt, …)")
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 2, 5, 15])
    parser.add_argument("--ways", nargs="+", default=list(STRATEGIES), choices=STRATEGIES)
    parser.add_argument("--words", type=int, default=200)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--test", type=int, default=500)
    parser.add_argument("--steps", type=int, default=600, help="fine-tuning steps per strategy")
    parser.add_argument(
        "--short-steps", type=int, default=2500, help="steps on the original stories"
    )
    parser.add_argument(
        "--base-steps", type=int, default=50, help="steps of masked LM pre-training"
    )
    parser.add_argument(
        "--learning-rate", type=float, default=2e-3, help="learning rate of fine-tuning"
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path, help="record to plot instead of training")
    parser.add_argument(
        "--last-giving", action="store_true", help="measure the last-giving shortcut of task 5"
    )
    parser.add_argument("--figure", type=Path, default=Path("cogltx.svg"))
    options = parser.parse_args()
    if options.last_giving:
        if options.babi is None:
            raise SystemExit("--last-giving needs bAbI's task 5; give its folder with --babi.")
        for words in (1, options.words):
            share = last_giving_accuracy(splits_of(options, 5, words)["test"])
            print(f"{share:.3f} of the stories of at least {words} words")
        return
    if options.draw:
        plot(json.loads(options.draw.read_text(encoding="utf-8"))["records"], options.figure)
        return
    torch.set_num_threads(options.threads)
    print_table(measure(options))


if __name__ == "__main__":
    main()
