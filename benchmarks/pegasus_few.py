"""PEGASUS fine-tuned on 10, 100 and 1,000 examples, with and without pre-training.

    python benchmarks/pegasus_few.py --runs RUNS [--seeds 2] [--out FILE.json]
    python benchmarks/pegasus_few.py --table

The numbers of examples are those of Zhang et al. 2020. Documents are synthetic: ten sentences about
three countries; the summary names the most frequent country and its capital
(benchmarks/country_documents.py). Gap sentences are selected by ROUGE as in the paper. All models
are fine-tuned for the same number of steps; the one without pre-training also for as many steps as
pre-training and fine-tuning together.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from country_documents import finetuned, pretrained
from record_file import RESULTS, Record, add_missing, make_parser, mean_and_half_range, read_records

EXAMPLES = (10, 100, 1000)
STEPS, FINETUNING = 1000, 200
TRIALS = [(before, examples, FINETUNING) for before in (True, False) for examples in EXAMPLES]
TRIALS += [(False, examples, STEPS + FINETUNING) for examples in EXAMPLES]
"""(pre-trained or not, number of examples, fine-tuning steps)"""
TRAINING = {
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "warmup_steps": 100,
    "tokens_per_batch": 1024,
}


def run_trial(runs: Path, pretraining: bool, examples: int, steps: int, seed: int) -> Record:
    kind = "pretrained" if pretraining else "fresh"
    base = runs / f"pegasus-{kind}-{seed}"
    pretrained("pegasus", base, TRAINING, steps=STEPS if pretraining else 1, seed=seed)
    out = runs / f"{base.name}-{examples}-{steps}"
    settings = {"learning_rate": 1e-3}
    return finetuned(base, out, settings, examples=examples, steps=steps, seed=seed)


def table(records: list[Record]) -> str:
    """Markdown table: mean over seeds and half of their range."""
    lines = ["| pre-trained | rows | steps | exact match | ROUGE-L |", "|---|---|---|---|---|"]
    for pretraining, examples, steps in TRIALS:
        trial = {"pretraining": pretraining, "examples": examples, "steps": steps}
        matching = [record for record in records if trial.items() <= record.items()]
        cells = [
            mean_and_half_range([r[metric] for r in matching])
            for metric in ("exact_match", "rougeL")
        ]
        answer = "yes" if pretraining else "no"
        lines.append(f"| {answer} | {examples:,} | {steps:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = make_parser(__doc__.splitlines()[0], RESULTS / "pegasus_few.json", 2)
    parser.add_argument("--runs", type=Path, default=Path("runs/pegasus-few"))
    args = parser.parse_args()
    if not args.table:
        trials = (
            {"pretraining": pretraining, "examples": examples, "steps": steps, "seed": seed}
            for seed in range(args.seeds)
            for pretraining, examples, steps in TRIALS
        )
        add_missing(args.out, trials, partial(run_trial, args.runs))
    print(table(read_records(args.out)))


if __name__ == "__main__":
    main()
