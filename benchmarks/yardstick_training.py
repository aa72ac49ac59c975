"""One training or one scoring of the yardstick, in a process of its own with one thread.

    python benchmarks/yardstick_training.py JOB.json

JOB.json holds the arguments of `fit` or `score`; the result is printed as JSON, with the CPU
seconds and the peak memory of the process. On SIGTERM a training saves a checkpoint and resumes the
next time. What went wrong with the training itself is printed under `failed`.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

Result = dict[str, Any]

SCORING_MINUTES = 20
"""CPU minutes that the test lines of a row may take."""
SCORED_TOGETHER = 100
"""Test lines between two looks at the clock."""
NO_PAIRS = "reconstruction"
"""A kind of score that says how well a text is restored, and not how probable it is."""


def fit(
    *,
    system: str,
    data: str,
    out: str,
    settings: dict[str, Any],
    budget: dict[str, float],
    validation_bytes: int,
    train_bytes: int,
    size: str,
    tokenizer: str,
    base: str | None,
    seed: int,
) -> Result:
    """Train, or resume; what was measured is read from metrics.jsonl."""
    import lmlab
    from lmlab.core.registry import find_system
    from lmlab.core.score import NORMALISED_KINDS
    from lmlab.core.system import NATS_PER_TOKEN
    from lmlab.training.training_logs import read_metrics

    run = Path(out)
    result = lmlab.train(
        system,
        data=data,
        out=run,
        size=size,
        tokenizer=None if base else tokenizer,  # a base has its own
        settings=settings,
        base=base,
        seed=seed,
        resume=(run / "config.json").exists(),
        quiet=True,
        **budget,
    )
    if result.reason == "interrupted":
        return {"interrupted": True}
    lines = read_metrics(run / "metrics.jsonl")
    validations = [line for line in lines if line["event"] == "validation"]
    losses = [float(line["loss"]) for line in validations if math.isfinite(line["loss"])]
    if not losses:
        return {"failed": "no validation loss is finite"}
    comparable = find_system(system).kind in NORMALISED_KINDS and result.unit == NATS_PER_TOKEN
    return {
        "loss": min(losses),
        "unit": result.unit,
        "parameters": result.parameters,
        "steps": result.steps,
        "seconds": lines[-1]["seconds"],
        "bytes_per_second": round(training_speed(lines, train_bytes), 1),
        "curve": validation_curve(validations, validation_bytes) if comparable else [],
    }


def validation_curve(validations: list[Result], validation_bytes: int) -> list[list[float]]:
    """Seconds of training, and bits per byte on the validation split, of each validation."""
    return [
        [line["seconds"], round(line["loss"] * line["count"] / math.log(2) / validation_bytes, 4)]
        for line in validations
        if math.isfinite(line["loss"])
    ]


def training_speed(lines: list[Result], train_bytes: int) -> float:
    """Bytes of text per second of training steps, without validations where steps are timed."""
    steps = [line for line in lines if line["event"] == "train"]
    timed = [
        line["count"] / line["tokens_per_second"] for line in steps if line.get("tokens_per_second")
    ]
    epochs = max((line.get("epochs", line["epoch"]) for line in steps), default=0)
    seconds = sum(timed) or max((line["seconds"] for line in steps), default=0)
    return float(epochs * train_bytes / max(seconds, 1e-9))


def score(*, run: str, texts: list[str], pairs: str | None) -> Result:
    """Bits per byte of the texts with its standard error, scoring speed, minimal pairs."""
    import lmlab
    from lmlab.core.score import summarise

    model = lmlab.load(run)
    started, scores = time.process_time(), []
    for first in range(0, len(texts), SCORED_TOGETHER):
        scores += model.score(texts[first : first + SCORED_TOGETHER], per_token=False)
        if time.process_time() - started > 60 * SCORING_MINUTES:
            return {"failed": f"scoring took more than {SCORING_MINUTES} minutes"}
    seconds, summary = time.process_time() - started, summarise(scores)
    bits = summary.bits_per_byte
    result: Result = {
        "kind": summary.kind,
        "order": summary.convention.order,
        "end": summary.convention.end,
        "bits_per_byte": bits,
        "texts": summary.sequences,
        "bytes": summary.utf8_bytes,
        "tokens": summary.tokens,
        "bytes_per_second": round(summary.utf8_bytes / max(seconds, 1e-9), 1),
    }
    if bits is not None:
        result["standard_error"] = standard_error(
            [-each.total / math.log(2) for each in scores], [each.utf8_bytes for each in scores]
        )
    if pairs is not None and summary.kind != NO_PAIRS:
        report = model.pairs(pairs)
        accuracies = {"all": report.overall, **{one.name: one for one in report.phenomena}}
        result["pairs"] = {
            name: {"accuracy": accuracy.accuracy_ties_half, "pairs": accuracy.pairs}
            for name, accuracy in accuracies.items()
        }
    return result


def standard_error(totals: list[float], sizes: list[int]) -> float:
    """Standard error of the ratio r = Σ totals / Σ sizes over n texts.

    √(n / (n - 1) · Σ (total - r size)²) / Σ sizes
    """
    ratio, count = sum(totals) / sum(sizes), len(totals)
    squares = sum((t - ratio * s) ** 2 for t, s in zip(totals, sizes, strict=True))
    return math.sqrt(squares * count / max(count - 1, 1)) / sum(sizes)


def main() -> None:
    import torch

    from lmlab.core.errors import UserError

    torch.set_num_threads(1)
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed is no result
    try:
        result = {"fit": fit, "score": score}[job.pop("kind")](**job)
    except UserError as error:
        result = {"failed": str(error)}
    result["cpu_seconds"] = round(time.process_time(), 1)
    result["peak_mebibytes"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    answer.write(json.dumps(result) + "\n")
    answer.close()


if __name__ == "__main__":
    main()
