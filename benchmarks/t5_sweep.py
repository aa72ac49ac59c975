"""T5's sweep of objective, corruption rate and span length, with a tiny budget.

    python benchmarks/t5_sweep.py --runs RUNS [--seeds 1] [--out FILE.json]
    python benchmarks/t5_sweep.py --table

Raffel et al. 2020 (§3.3) vary one of the three at a time from spans of mean length 3 over 15 % of
the tokens, and evaluate after fine-tuning. Likewise here: each variant is pre-trained for the same
steps on the same documents of ten sentences, fine-tuned on 300 rows of the task of
benchmarks/country_documents.py and evaluated by the share of test documents whose country and
capital it generates. `span_length=1` masks single tokens, as BERT does. The baseline is the same
network without pre-training.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from country_documents import finetuned, pretrained
from kept_records import RESULTS, Record, fill, options, read, spread

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
"""Differences from T5's own settings; rates have spans of 3, spans have 15 %."""


def judged(runs: Path, variant: str, seed: int) -> Record:
    name = f"t5-{list(VARIANTS).index(variant)}-{seed}"
    steps = 1 if variant == "not pre-trained" else STEPS
    base = pretrained("t5", runs / name, TRAINING | VARIANTS[variant], steps=steps, seed=seed)
    out = runs / f"{name}-{EXAMPLES}"
    how = {"optimizer": "adafactor", "learning_rate": 0.01}
    return finetuned(base, out, how, examples=EXAMPLES, steps=FINETUNING, seed=seed)


def table(records: list[Record]) -> str:
    """Mean over seeds and half of their range."""
    lines = ["| pre-trained by | exact match | ROUGE-L |", "|---|---|---|"]
    for variant in VARIANTS:
        found = [record for record in records if record["variant"] == variant]
        cells = [spread([r[measure] for r in found]) for measure in ("exact_match", "rougeL")]
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = options(__doc__.splitlines()[0], RESULTS / "t5_sweep.json", 1)
    parser.add_argument("--runs", type=Path, default=Path("runs/t5-sweep"))
    given = parser.parse_args()
    if not given.table:
        asked = (
            {"variant": variant, "seed": seed}
            for seed in range(given.seeds)
            for variant in VARIANTS
        )
        fill(given.out, asked, partial(judged, given.runs))
    print(table(read(given.out)))


if __name__ == "__main__":
    main()
