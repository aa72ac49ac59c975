"""T5's sweep of objective, corruption rate and span length, on a small budget.

    python benchmarks/t5_sweep.py --runs RUNS [--seeds 1] [--out FILE.json]
    python benchmarks/t5_sweep.py --table

Raffel et al. 2020 (§3.3) vary one of the three at a time, starting from spans of mean length 3
over 15 % of the tokens, and evaluate after fine-tuning. Likewise here: each variant is pre-trained
for the same number of steps on the same documents of ten sentences, fine-tuned on 300 examples of
the task in benchmarks/country_documents.py, and evaluated by the share of test documents whose
country and capital it generates. `mean_span_length=1` masks single tokens, as BERT does. The
baseline is the same network without pre-training.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from country_documents import finetuned, pretrained
from record_file import RESULTS, Record, add_missing, make_parser, mean_and_half_range, read_records

EXAMPLES, STEPS, FINETUNING = 300, 500, 150
TRAINING = {
    "optimizer": "adafactor",
    "learning_rate": 0.03,
    "schedule": "cosine",
    "warmup_steps": 40,
    "tokens_per_batch": 1024,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "spans of 3, 15 %": {},
    "10 %": {"rate": 0.1},
    "25 %": {"rate": 0.25},
    "50 %": {"rate": 0.5},
    "spans of 2": {"mean_span_length": 2},
    "spans of 5": {"mean_span_length": 5},
    "spans of 10": {"mean_span_length": 10},
    "single tokens": {"mean_span_length": 1},
    "prefix LM": {"objective": "prefix-lm"},
    "language modelling": {"objective": "language-modelling"},
    "not pre-trained": {},
}
"""Differences from T5's defaults: mean span length 3, corruption rate 15 %."""


def evaluate_variant(runs: Path, variant: str, seed: int) -> Record:
    """Pre-train, fine-tune and evaluate one variant."""
    name = f"t5-{list(VARIANTS).index(variant)}-{seed}"
    steps = 1 if variant == "not pre-trained" else STEPS
    base = pretrained("t5", runs / name, TRAINING | VARIANTS[variant], steps=steps, seed=seed)
    out = runs / f"{name}-{EXAMPLES}"
    settings = {"optimizer": "adafactor", "learning_rate": 0.01}
    return finetuned(base, out, settings, examples=EXAMPLES, steps=FINETUNING, seed=seed)


def table(records: list[Record]) -> str:
    """Mean over seeds and half their range, one row per variant."""
    lines = ["| pre-trained by | exact match | ROUGE-L |", "|---|---|---|"]
    for variant in VARIANTS:
        matching = [record for record in records if record["variant"] == variant]
        cells = [
            mean_and_half_range([r[metric] for r in matching])
            for metric in ("exact_match", "rougeL")
        ]
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = make_parser(__doc__.splitlines()[0], RESULTS / "t5_sweep.json", 1)
    parser.add_argument("--runs", type=Path, default=Path("runs/t5-sweep"))
    arguments = parser.parse_args()
    if not arguments.table:
        jobs = (
            {"variant": variant, "seed": seed}
            for seed in range(arguments.seeds)
            for variant in VARIANTS
        )
        add_missing(arguments.out, jobs, partial(evaluate_variant, arguments.runs))
    print(table(read_records(arguments.out)))


if __name__ == "__main__":
    main()
