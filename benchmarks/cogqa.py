"""Multi-hop questions on WordNet: CogQA against readers without hops (Ding et al. 2019).

    python benchmarks/cogqa.py [--seeds 1] [--steps 1500] [--work FOLDER] [--out FILE.json]
    python benchmarks/cogqa.py --table FILE.json

A small `cogqa` is pre-trained on WordNet's glosses and then fine-tuned on `wordnet-hops`, with its
two systems trained separately and jointly (as in the paper). The baselines are the same encoder,
trained on the same questions, which reads without hops: the paragraphs of the entities that the
question names, or those retrieved by BM25. Reported are correct answers, correct paths and both, on
questions about entities of no training question. Finished parts are saved in the work folder and
skipped; interrupted ones resume.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from finishing import finished

SYSTEM = {
    "width": 64,
    "layers": 4,
    "heads": 4,
    "length": 128,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "positions": "rotary",
    "pre_norm": True,
}
PRETRAINING = {
    "tokens_per_batch": 2048,
    "vocabulary_size": 6000,
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "warmup_steps": 20,
}
TRAINING = {
    "tokens_per_batch": 1536,
    "learning_rate": 3e-3,
    "weight_decay": 0.01,
    "warmup_steps": 50,
}
READERS = ("cogqa apart", "cogqa together", "one hop", "bm25")


def base_run(work: Path, steps: int) -> Path:
    """Pre-train the encoder that all readers start from."""
    import lmlab

    out = work / f"base-{steps}"
    finished(
        lmlab.train(
            "cogqa",
            data="wordnet",
            out=out,
            settings={**SYSTEM, **PRETRAINING},
            steps=steps,
            resume=out.exists(),
            quiet=True,
        )
    )
    return out


def run_cogqa(base: Path, work: Path, seed: int, steps: int, joint: bool) -> dict[str, Any]:
    from lmlab.tasks.finetune import finetune

    out = work / f"{base.name}-{'together' if joint else 'apart'}-{steps}-{seed}"
    # A joint step costs as much as one of the first stage; the paper trains each for an epoch.
    result = finetune(
        base,
        task="hops",
        data="wordnet-hops",
        out=out,
        settings={**TRAINING, "joint_training": joint},
        steps=steps,
        seed=seed,
        resume=out.exists(),
        quiet=True,
    )
    return dict(result.metrics)


def run_baselines(base: Path, work: Path, seed: int, steps: int) -> dict[str, dict[str, float]]:
    """Both readers without hops: one training run, two sources of paragraphs."""
    from plain_readers import train_plain_reader

    from lmlab.layers.span_pointers import CogQAConfig
    from lmlab.tasks.finetune import FINETUNE_DEFAULTS
    from lmlab.tasks.multihop.multihop_rows import MultihopRow, read_multihop_rows
    from lmlab.tasks.multihop.paragraph_store import shared_paragraphs
    from lmlab.training.config import apply_settings, with_budget
    from lmlab.training.run_folder import load_run

    splits = read_multihop_rows("wordnet-hops")
    rows = {name: [MultihopRow.from_row(row) for row in split] for name, split in splits.items()}
    config = with_budget(apply_settings(FINETUNE_DEFAULTS, {**TRAINING, "seed": seed}), steps=steps)
    reader = train_plain_reader(
        load_run(base),
        rows,
        shared_paragraphs(splits),
        config=config,
        out=work / f"{base.name}-plain-{steps}-{seed}",
        settings=CogQAConfig(),
    )
    answers_by_name = {
        "one hop": reader.answer_first(rows["test"]),
        "bm25": reader.answer_retrieved(rows["test"]),
    }
    return {
        name: accuracy_by_type(rows["test"], answers) for name, answers in answers_by_name.items()
    }


def accuracy_by_type(rows: Any, answers: list[str]) -> dict[str, float]:
    """Accuracy over all questions and by question type; there are no paths."""
    correct = [
        (row.sort, row.answer.lower() == answer.lower())
        for row, answer in zip(rows, answers, strict=True)
    ]
    metrics = {"answer": sum(is_correct for _, is_correct in correct) / len(correct)}
    for kind in sorted({kind for kind, _ in correct}):
        of_kind = [is_correct for name, is_correct in correct if name == kind]
        metrics[f"answer {kind}"] = sum(of_kind) / len(of_kind)
    return metrics


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All readers and seeds for `steps` steps; existing measurements are reused."""
    import torch

    torch.set_num_threads(1)
    work: Path = options.work
    work.mkdir(parents=True, exist_ok=True)
    records_path = work / "records.json"
    records: list[dict[str, Any]] = (
        json.loads(records_path.read_text()) if records_path.exists() else []
    )
    budget = {"steps": options.steps, "base_steps": options.base_steps}
    base = base_run(work, options.base_steps)

    def same_budget(entry: dict[str, Any]) -> bool:
        return budget == {name: entry.get(name) for name in budget}

    def missing(seed: int, *names: str) -> list[str]:
        done = {r["reader"] for r in records if r["seed"] == seed and same_budget(r)}
        return [name for name in names if name in options.readers and name not in done]

    def save(name: str, seed: int, metrics: dict[str, float], start: float) -> None:
        row = {"reader": name, "seed": seed, **budget, "cpu_seconds": time.process_time() - start}
        records.append({**row, "metrics": metrics})
        records_path.write_text(json.dumps(records), encoding="utf-8")
        print(f"{name} seed {seed}: {json.dumps(metrics)}", flush=True)

    for seed in range(options.seeds):
        for name in missing(seed, "cogqa apart", "cogqa together"):
            start = time.process_time()
            joint = name == "cogqa together"
            save(name, seed, run_cogqa(base, work, seed, options.steps, joint), start)
        if baselines := missing(seed, "one hop", "bm25"):
            start = time.process_time()
            metrics_by_name = run_baselines(base, work, seed, options.steps)
            for name in baselines:
                save(name, seed, metrics_by_name[name], start)
    selected = [entry for entry in records if same_budget(entry)]
    return {"system": SYSTEM, "training": TRAINING, "records": selected}


def table(report: dict[str, Any]) -> str:
    """Means over seeds, with their standard deviation where there are several."""
    columns = ["answer", "path", "joint", "answer two-hop", "answer three-hop"]
    columns += ["answer alternative", "answer yes-no"]
    lines = ["| reader | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in READERS:
        metrics = [r["metrics"] for r in report["records"] if r["reader"] == name]
        cells = []
        for column in columns:
            values = [m[column] for m in metrics if column in m]
            mean = statistics.mean(values) if values else None
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            cells.append("" if mean is None else f"{mean:.3f}{spread}")
        if metrics:
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1500, help="fine-tuning steps per stage")
    parser.add_argument("--base-steps", type=int, default=300)
    parser.add_argument("--readers", default=",".join(READERS), type=lambda text: text.split(","))
    parser.add_argument("--work", type=Path, default=Path("runs/cogqa-benchmark"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="record to print instead of training")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text(encoding="utf-8"))))
        return
    report = measure(options)
    print(table(report))
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
