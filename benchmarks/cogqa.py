"""Multi-hop questions on WordNet: CogQA against readers without hops (Ding et al. 2019).

    python benchmarks/cogqa.py [--seeds 1] [--steps 1500] [--work FOLDER] [--out FILE.json]
    python benchmarks/cogqa.py --table FILE.json

A small `cogqa` is pre-trained on WordNet's glosses and then fine-tuned on `wordnet-hops`, with its
two systems trained separately and jointly (as in the paper). The baselines are the same encoder,
trained on the same questions, which reads without hops: the paragraphs of the entities that the
question names, or those retrieved by BM25. Reported are correct answers, correct paths and both, on
questions about entities of no training question. Finished parts are kept in the work folder and
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
    """The encoder that all readers start from."""
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


def run_cogqa(base: Path, work: Path, seed: int, steps: int, together: bool) -> dict[str, Any]:
    from lmlab.tasks.finetune import finetune

    out = work / f"{base.name}-{'together' if together else 'apart'}-{steps}-{seed}"
    # Together every step costs as much as one of the first stage; the paper gives each an epoch.
    result = finetune(
        base,
        task="hops",
        data="wordnet-hops",
        out=out,
        settings={**TRAINING, "joint_training": together},
        steps=steps,
        seed=seed,
        resume=out.exists(),
        quiet=True,
    )
    return dict(result.metrics)


def run_plain(base: Path, work: Path, seed: int, steps: int) -> dict[str, dict[str, float]]:
    """Both readers without hops: one training run, two sources of paragraphs."""
    from plain_readers import train_plain_reader

    from lmlab.layers.span_pointers import CogQAConfig
    from lmlab.tasks.finetune import FINETUNE_DEFAULTS
    from lmlab.tasks.multihop.multihop_rows import MultihopRow, read_multihop_rows
    from lmlab.tasks.multihop.paragraph_store import shared_paragraphs
    from lmlab.training.config import apply_settings, with_budget
    from lmlab.training.run_folder import load_run

    splits = read_multihop_rows("wordnet-hops")
    rows = {name: [MultihopRow.from_row(row) for row in found] for name, found in splits.items()}
    config = with_budget(apply_settings(FINETUNE_DEFAULTS, {**TRAINING, "seed": seed}), steps=steps)
    plain = train_plain_reader(
        load_run(base),
        rows,
        shared_paragraphs(splits),
        config=config,
        out=work / f"{base.name}-plain-{steps}-{seed}",
        settings=CogQAConfig(),
    )
    found = {
        "one hop": plain.answer_first(rows["test"]),
        "bm25": plain.answer_retrieved(rows["test"]),
    }
    return {name: answered(rows["test"], answers) for name, answers in found.items()}


def answered(rows: Any, answers: list[str]) -> dict[str, float]:
    """Accuracy over all questions and by question type; there are no paths."""
    right = [
        (row.sort, row.answer.lower() == answer.lower())
        for row, answer in zip(rows, answers, strict=True)
    ]
    figures = {"answer": sum(each for _, each in right) / len(right)}
    for sort in sorted({sort for sort, _ in right}):
        these = [each for name, each in right if name == sort]
        figures[f"answer {sort}"] = sum(these) / len(these)
    return figures


def record(options: argparse.Namespace) -> dict[str, Any]:
    """All readers and seeds for `steps` steps; existing measurements are reused."""
    import torch

    torch.set_num_threads(1)
    work: Path = options.work
    work.mkdir(parents=True, exist_ok=True)
    kept = work / "records.json"
    records: list[dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else []
    budget = {"steps": options.steps, "base_steps": options.base_steps}
    base = base_run(work, options.base_steps)

    def same_budget(each: dict[str, Any]) -> bool:
        return budget == {name: each.get(name) for name in budget}

    def missing(seed: int, *names: str) -> list[str]:
        done = {e["reader"] for e in records if e["seed"] == seed and same_budget(e)}
        return [name for name in names if name in options.readers and name not in done]

    def keep(name: str, seed: int, metrics: dict[str, float], began: float) -> None:
        told = {"reader": name, "seed": seed, **budget, "cpu_seconds": time.process_time() - began}
        records.append({**told, "metrics": metrics})
        kept.write_text(json.dumps(records), encoding="utf-8")
        print(f"{name} seed {seed}: {json.dumps(metrics)}", flush=True)

    for seed in range(options.seeds):
        for name in missing(seed, "cogqa apart", "cogqa together"):
            began = time.process_time()
            together = name == "cogqa together"
            keep(name, seed, run_cogqa(base, work, seed, options.steps, together), began)
        if plain := missing(seed, "one hop", "bm25"):
            began = time.process_time()
            found = run_plain(base, work, seed, options.steps)
            for name in plain:
                keep(name, seed, found[name], began)
    here = [each for each in records if same_budget(each)]
    return {"system": SYSTEM, "training": TRAINING, "records": here}


def table(found: dict[str, Any]) -> str:
    """Means over seeds, with their standard deviation where there are several."""
    columns = ["answer", "path", "joint", "answer two-hop", "answer three-hop"]
    columns += ["answer alternative", "answer yes-no"]
    lines = ["| reader | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in READERS:
        these = [each["metrics"] for each in found["records"] if each["reader"] == name]
        cells = []
        for column in columns:
            values = [each[column] for each in these if column in each]
            mean = statistics.mean(values) if values else None
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            cells.append("" if mean is None else f"{mean:.3f}{spread}")
        if these:
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1500, help="steps of each stage")
    parser.add_argument("--base-steps", type=int, default=300)
    parser.add_argument("--readers", default=",".join(READERS), type=lambda text: text.split(","))
    parser.add_argument("--work", type=Path, default=Path("runs/cogqa-benchmark"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="records to print instead of training")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text(encoding="utf-8"))))
        return
    found = record(options)
    print(table(found))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
